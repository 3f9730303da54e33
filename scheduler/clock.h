/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_SCHEDULER_CLOCK_H
#define GPUSHARE_SCHEDULER_CLOCK_H

#include <stdint.h>
#include <time.h>

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* CLOCK_MONOTONIC, as in every page, in nanoseconds. */
static inline uint64_t clock_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

#endif
