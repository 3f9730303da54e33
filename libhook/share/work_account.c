/* SPDX-License-Identifier: Apache-2.0 */
#include "work_account.h"

#include <stddef.h>
#include <string.h>

#include "quota/process_table.h"
#include "quota/pages.h"

struct work_account work_accounts[GPUSHARE_MAX_CARDS];

bool work_account_open(struct work_account *account, unsigned card)
{
	const int number = process_number();

	if (number < 0)
		return false;
	struct gpushare_work *page = card_work(card, (unsigned)number);
	spinlock_lock(&account->lock);
	if (!account->page) {
		account->page = page;
		account->change = atomic_load(&page->begun);
		work_account_publish(account);
	}
	spinlock_unlock(&account->lock);
	return true;
}

static void put(_Atomic uint64_t *field, uint64_t value)
{
	atomic_store_explicit(field, value, memory_order_release);
}

static void change_begin(struct work_account *account)
{
	atomic_store_explicit(&account->page->begun, ++account->change, memory_order_relaxed);
}

static void change_end(const struct work_account *account)
{
	atomic_store_explicit(&account->page->done, account->change, memory_order_release);
}

void work_account_publish(struct work_account *account)
{
	struct gpushare_work *page = account->page;

	change_begin(account);
	put(&page->busy_ns, account->busy_ns);
	put(&page->since_ns, account->since_ns);
	put(&page->pending_ns, account->pending_ns);
	put(&page->submitted, account->submitted);
	put(&page->ended, account->ended);
	put(&page->throttled_ns, account->throttled_ns);
	atomic_store_explicit(&page->waiting, account->waiting, memory_order_release);
	atomic_store_explicit(&page->forced, account->forced, memory_order_release);
	change_end(account);
}

void work_account_begin_busy(struct work_account *account, uint64_t estimate_ns, uint64_t now_ns)
{
	account->submitted++;
	account->pending_ns += estimate_ns;
	account->since_ns = now_ns;
	work_account_publish(account);
}

static void pending_lower(struct work_account *account, uint64_t estimate_ns)
{
	account->pending_ns -=
		estimate_ns < account->pending_ns ? estimate_ns : account->pending_ns;
	if (work_account_is_idle(account))
		account->pending_ns = 0;
	atomic_fetch_add_explicit(&account->progress, 1, memory_order_release);
}

uint64_t work_account_end(struct work_account *account, uint64_t pieces, uint64_t estimate_ns,
	uint64_t taken_ns, uint64_t end_ns)
{
	const uint64_t begun_ns = taken_ns < end_ns ? end_ns - taken_ns : 0;

	if (end_ns <= account->since_ns)
		taken_ns = 0;
	else if (begun_ns < account->since_ns)
		taken_ns = end_ns - account->since_ns;
	account->busy_ns += taken_ns;
	if (end_ns > account->since_ns)
		account->since_ns = end_ns;
	account->ended += pieces;
	pending_lower(account, estimate_ns);
	work_account_publish(account);
	return taken_ns;
}

void work_account_withdraw(struct work_account *account, uint64_t estimate_ns)
{
	account->ended++;
	pending_lower(account, estimate_ns);
	work_account_publish(account);
}

void work_account_sum(
	const struct work_account *account, unsigned card, struct work_account_sum *sum)
{
	const unsigned count = process_count();

	*sum = (struct work_account_sum){.pending_ns = account->pending_ns,
		.pieces = account->submitted - account->ended,
		.busy_ns = account->busy_ns};
	for (unsigned number = 0; number < count; number++) {
		const struct gpushare_work *other = card_work(card, number);
		if (other == account->page)
			continue;
		sum->pending_ns += atomic_load_explicit(&other->pending_ns, memory_order_relaxed);
		sum->pieces += atomic_load_explicit(&other->submitted, memory_order_relaxed) -
			       atomic_load_explicit(&other->ended, memory_order_relaxed);
		sum->busy_ns += atomic_load_explicit(&other->busy_ns, memory_order_relaxed);
	}
}

void work_accounts_before_fork(void)
{
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		spinlock_lock(&work_accounts[card].lock);
}

void work_accounts_after_fork_in_parent(void)
{
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		spinlock_unlock(&work_accounts[card].lock);
}

void work_accounts_after_fork_in_child(void)
{
	/* Only the accounts that were used: the rest of the tables has no pages yet. */
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (work_accounts[card].page)
			memset(&work_accounts[card], 0, sizeof(work_accounts[card]));
		else
			spinlock_unlock(&work_accounts[card].lock);
}
