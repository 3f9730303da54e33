/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of this process on each card: what was submitted, what has finished, how long the card
 * was busy with it. This is the authoritative copy; `struct gpushare_work` in the status page is a
 * copy for other processes, which any process of the tenant could write to.
 *
 * Lock order: an account's lock is a leaf.
 */
#ifndef GPUSHARE_WORK_ACCOUNT_H
#define GPUSHARE_WORK_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "self_throttle.h"
#include "estimate.h"
#include "gpushare_abi.h"
#include "stream_state.h"
#include "spinlock.h"

struct work_account {
	_Alignas(64) spinlock lock;  /* guards everything except the atomics */
	uint32_t change;	     /* as in the page: begun and done */
	bool is_unscheduled;	     /* there was no scheduler at the last check */
	struct gpushare_work *page;  /* NULL: not found yet */
	struct stream_state *stream; /* of the last launch; NULL: it has ended */
	uint64_t pending_ns, submitted, ended, busy_ns, since_ns, throttled_ns;
	uint32_t forced, waiting;
	uint32_t waiting_closed; /* of these, threads at a closed gate */
	uint32_t epoch;		 /* of the gate, at the last check */
	bool may_have_been_open; /* there may be work that was not counted */
	struct self_throttle throttle;
	_Atomic uint32_t progress; /* futex word: incremented whenever pending_ns was lowered */
	_Atomic uint32_t waiting_for_progress;
	struct estimates estimates;
};

#pragma GCC visibility push(hidden)
extern struct work_account work_accounts[GPUSHARE_MAX_CARDS];
#pragma GCC visibility pop

/* Find this process's own record. With no lock: the first call of a forked child adds it to the
 * process table. False: it has no number, so nothing can be counted. */
bool work_account_open(struct work_account *account, unsigned card);

/* The rest with the lock. */

static inline bool work_account_is_idle(const struct work_account *account)
{
	return account->submitted == account->ended;
}

/* The first unit of work when nothing was pending. */
void work_account_begin_busy(struct work_account *account, uint64_t estimate_ns, uint64_t now_ns);

/* One more unit of work. Each word is stored with release order, so that none is visible before
 * `begun`: on x86-64 a plain store. */
static inline void work_account_begin(struct work_account *account, uint64_t estimate_ns)
{
	struct gpushare_work *page = account->page;
	const uint32_t change = ++account->change;

	account->submitted++;
	account->pending_ns += estimate_ns;
	atomic_store_explicit(&page->begun, change, memory_order_relaxed);
	atomic_store_explicit(&page->pending_ns, account->pending_ns, memory_order_release);
	atomic_store_explicit(&page->submitted, account->submitted, memory_order_release);
	atomic_store_explicit(&page->done, change, memory_order_release);
}

/* `pieces` units of work finished at `end_ns`, of which the card was busy with them for `taken_ns`.
 * Returns how much of that was not counted yet: time that another stream's work took at the same
 * moment is not counted twice. */
uint64_t work_account_end(struct work_account *account, uint64_t pieces, uint64_t estimate_ns,
	uint64_t taken_ns, uint64_t end_ns);

/* Work that was begun was not submitted after all. */
void work_account_withdraw(struct work_account *account, uint64_t estimate_ns);

/* Copy everything to the page. */
void work_account_publish(struct work_account *account);

/* The totals of all processes of the tenant, with this one's own account. */
struct work_account_sum {
	uint64_t pending_ns, pieces, busy_ns;
};
void work_account_sum(
	const struct work_account *account, unsigned card, struct work_account_sum *sum);

void work_accounts_before_fork(void);
void work_accounts_after_fork_in_parent(void);
void work_accounts_after_fork_in_child(void);

#endif
