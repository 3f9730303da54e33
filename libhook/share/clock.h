/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_CLOCK_H
#define GPUSHARE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, as in the pages: one clock for all containers of a machine. */
static inline uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
