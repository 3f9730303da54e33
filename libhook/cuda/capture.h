/* SPDX-License-Identifier: Apache-2.0
 *
 * Which captures are going on. What a captured stream is given starts nothing, and neither a wait
 * nor an event of ours may get between.
 */
#ifndef GPUSHARE_CAPTURE_H
#define GPUSHARE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

/* In all threads. Never less than there are; more for as long as the process lives where a program
 * destroyed a stream in the middle of a capture: then the driver is asked of each stream. */
#pragma GCC visibility push(hidden)
extern _Atomic unsigned captures_open;
#pragma GCC visibility pop

static inline bool captures_are_open(void)
{
	return __builtin_expect(atomic_load_explicit(&captures_open, memory_order_acquire) > 0, 0);
}

#endif
