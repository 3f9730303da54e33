/* SPDX-License-Identifier: Apache-2.0
 *
 * The locks on the status file, all through one descriptor: byte 0 is the page's lock, the first
 * byte of a process's record is its life sign. They are OFD locks: they end with the last copy of
 * the descriptor, so a killed process leaves none, and closing another descriptor of the file
 * releases none.
 */
#ifndef GPUSHARE_PAGE_LOCK_H
#define GPUSHARE_PAGE_LOCK_H

#include <stdbool.h>

/* Take the page's lock, both among the threads of this process and among the tenant's processes.
 * False if it was not available within a few seconds (a stopped process may hold it). */
bool page_lock(void);
void page_unlock(void);

/* The same without waiting. */
bool page_try_lock(void);

/* The rest is for the holder of the page's lock. */

/* Put this process's life sign on record `number`; false if it could not. */
bool life_sign_set(unsigned number);

/* Whether another process shows a life sign on record `number`. */
bool life_sign_is_set(unsigned number);

/* The descriptor is closed in a forked child: it shares the parent's file description, and the
 * parent's locks would otherwise outlive the parent. */
void page_lock_before_fork(void);
void page_lock_after_fork_in_parent(void);
void page_lock_after_fork_in_child(void);

#endif
