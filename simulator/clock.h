/* SPDX-License-Identifier: Apache-2.0
 *
 * Time. CLOCK_MONOTONIC is one clock for all containers; a tick counter, which takes a third of the
 * time to read, tells a launch that its queue cannot be empty yet.
 */
#ifndef GPUSHARE_SIMULATOR_CLOCK_H
#define GPUSHARE_SIMULATOR_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The processor's own counter, of constant rate; nanoseconds if there is none. */
static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t ticks;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return clock_ns();
#endif
}

#endif
