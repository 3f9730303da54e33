/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's processes that use the driver, and their numbers, which index the arrays in the
 * status page. A process that needs a record clears the records of processes that have exited.
 */
#ifndef GPUSHARE_PROCESS_TABLE_H
#define GPUSHARE_PROCESS_TABLE_H

#include <stdatomic.h>

/* Add this process to the tenant's processes; again after a fork. NULL, or the reason for a
 * failure. Needs pages_open. */
const char *process_table_join(void);

/* Clear the records of exited processes, as a process does that needs a free one. */
void process_table_reap(void);

/* The same if no process did so lately. For calls that only read: it waits for no lock. */
void process_table_refresh(void);

/* The same, with the page's lock held. */
void process_table_reap_locked(void);

/* A forked child is a different process from its parent. */
void process_table_forget(void);

#pragma GCC visibility push(hidden)
extern _Atomic int process_joined;
#pragma GCC visibility pop

/* In a child after fork, at its first call; kept away from the path of every allocation. */
__attribute__((noinline, cold)) int process_number_rejoin(void);

/* This process's number, -1 if it has none yet. */
static inline int process_number_known(void)
{
	return atomic_load_explicit(&process_joined, memory_order_acquire);
}

/* The same, but adds a forked child to the table. -1: that failed. (Without the hint, an allocation
 * costs 20 ns more.) */
static inline int process_number(void)
{
	int number = process_number_known();

	return __builtin_expect(number >= 0, 1) ? number : process_number_rejoin();
}

#endif
