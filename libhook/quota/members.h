/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's processes that hold the driver, and which number each has among them: it indexes
 * what is theirs in the status page. Who has ended is cleared by whoever needs its room.
 */
#ifndef GPUSHARE_MEMBERS_H
#define GPUSHARE_MEMBERS_H

#include <stdatomic.h>

/* Enter this process among the tenant's; again after a fork. NULL, or why not. Needs pages_open. */
const char *members_join(void);

/* Clear what processes left that have ended, as whoever needs their room does. */
void members_reap(void);

/* The same, by a holder of the page's lock. */
void members_reap_locked(void);

/* A forked child is not who its parent is. */
void members_forget(void);

#pragma GCC visibility push(hidden)
extern _Atomic int member_joined;
#pragma GCC visibility pop

/* In a child after fork, at the first call; out of the way of what every allocation takes. */
__attribute__((noinline, cold)) int member_number_anew(void);

/* This process's number, -1 if it has none yet. */
static inline int member_number_known(void)
{
	return atomic_load_explicit(&member_joined, memory_order_acquire);
}

/* The same; a forked child is entered by this. -1: it could not be. (Without the hint an allocation
 * costs 20 ns more.) */
static inline int member_number(void)
{
	int number = member_number_known();

	return __builtin_expect(number >= 0, 1) ? number : member_number_anew();
}

#endif
