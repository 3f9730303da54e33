/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process has on each card: what was submitted, what was seen to end, how long the card
 * was busy with it. Truth is here; `struct gpushare_work` in the status page is a copy for others,
 * which any process of the tenant could write to.
 *
 * Lock order: an account's lock is a leaf.
 */
#ifndef GPUSHARE_ACCOUNT_H
#define GPUSHARE_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "alone.h"
#include "estimate.h"
#include "gpushare_abi.h"
#include "lane.h"
#include "spin.h"

struct account {
	_Alignas(64) spin_lock lock; /* guards the rest, but for the atomics */
	uint32_t change;	     /* as in the page: begun and done */
	bool is_alone;		     /* no scheduler was there when somebody looked last */
	struct gpushare_work *page;  /* NULL: not found yet */
	struct lane *lane;	     /* of the last launch; NULL: it is gone */
	uint64_t pending_ns, submitted, ended, busy_ns, since_ns, throttled_ns;
	uint32_t forced, waiting;
	uint32_t waiting_closed; /* of them, at a gate that is closed */
	uint32_t epoch;		 /* of the gate, when somebody looked last */
	bool may_have_been_open; /* so there may be work that nobody counted */
	struct alone alone;
	_Atomic uint32_t progress; /* futex word: one more whenever pending_ns was lowered */
	_Atomic uint32_t waiting_for_progress;
	struct estimates estimates;
};

#pragma GCC visibility push(hidden)
extern struct account accounts[GPUSHARE_MAX_CARDS];
#pragma GCC visibility pop

/* Find this process's own record. With no lock: the first call of a forked child enters it among
 * the tenant's processes. False: it has no number, so nobody can be told. */
bool account_open(struct account *account, unsigned card);

/* The rest with the lock. */

static inline bool account_is_idle(const struct account *account)
{
	return account->submitted == account->ended;
}

/* The first piece where nothing was pending. */
void account_begin_busy(struct account *account, uint64_t estimate_ns, uint64_t now_ns);

/* One more piece. Each word is released, so that none is seen before `begun`: on x86-64 a plain
 * store. */
static inline void account_begin(struct account *account, uint64_t estimate_ns)
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

/* `pieces` have ended at `end_ns`, of which the card was busy with them for `taken_ns`. Returns how
 * much of that nobody had counted: what another stream's pieces took in the same time is not taken
 * twice. */
uint64_t account_end(struct account *account, uint64_t pieces, uint64_t estimate_ns,
	uint64_t taken_ns, uint64_t end_ns);

/* A piece that was begun was not submitted after all. */
void account_withdraw(struct account *account, uint64_t estimate_ns);

/* Copy everything to the page. */
void account_publish(struct account *account);

/* What all processes of the tenant have, this one by its own account. */
struct account_sum {
	uint64_t pending_ns, pieces, busy_ns;
};
void account_sum(const struct account *account, unsigned card, struct account_sum *sum);

void accounts_before_fork(void);
void accounts_after_fork_in_parent(void);
void accounts_after_fork_in_child(void);

#endif
