/* SPDX-License-Identifier: Apache-2.0
 *
 * To reserve: publish the bytes, sum what all processes hold, then settle. Of two reservations that
 * race, at least one sees both, so the quota is never exceeded. If both see both, neither would get
 * what one of them could have: this is why the decision is repeated under the page's lock.
 *
 * Lock order: the page's lock only, never held while the driver is called.
 */
#include "ledger.h"

#include <errno.h>
#include <time.h>

#include "channel/log.h"
#include "process_table.h"
#include "page_lock.h"
#include "pages.h"
#include "usage.h"

/* A process that was stopped between two of its own writes leaves bytes undecided. */
#define SETTLE_WAIT_NS 2000000000

/* Whether only this process, with `own_bytes`, had a reservation pending or began one between two
 * reads: `before` is the sum of the words at the first read. */
static bool nothing_was_pending(
	const struct gpushare_usage *usage, uint64_t own_bytes, uint64_t before)
{
	const unsigned count = process_count();
	uint64_t bytes = 0, words = 0;

	loads_in_order();
	for (unsigned number = 0; number < count; number++) {
		uint64_t word = atomic_load(&usage->pending[number]);
		bytes += word & GPUSHARE_PENDING_BYTES;
		words += word;
	}
	return bytes == own_bytes && words == before;
}

/* The limit is read after all sums: the daemon lowers it before it reads what is held, so that one
 * of the two sees the other. */
static inline bool is_within(unsigned card)
{
	uint64_t used = usage_of(card);

	loads_in_order();
	return used <= limit_bytes(card);
}

/* The same, where managed memory of which `managed_bytes` are being reserved may be beyond the
 * quota. The managed memory is read after all that is held: see gpushare_abi.h. */
static bool is_within_with_host(unsigned card, uint64_t managed_bytes)
{
	uint64_t used = usage_of(card);

	loads_in_order();
	return used <= limit_bytes(card) + spared_bytes(card, managed_bytes);
}

/* Decide with the page's lock held: any other process that is refused withdraws and waits for the
 * lock, so pending bytes of others settle soon, and then the sum is exact. */
static bool publish_locked(struct gpushare_usage *usage, int number, unsigned card,
	enum gpushare_kind kind, uint64_t bytes)
{
	const uint64_t managed_bytes = kind == GPUSHARE_KIND_MANAGED ? bytes : 0;
	struct timespec pause = {.tv_nsec = 10000};

	atomic_fetch_add(&usage->pending[number], GPUSHARE_PENDING_BEGIN + bytes);
	atomic_fetch_add(&usage->held[number], bytes);
	for (uint64_t waited_ns = 0;; waited_ns += (uint64_t)pause.tv_nsec) {
		uint64_t before = sum_of(usage->pending, process_count());
		if (is_within_with_host(card, managed_bytes))
			return true;
		if (nothing_was_pending(usage, bytes, before) || waited_ns > SETTLE_WAIT_NS)
			break;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 1000000)
			pause.tv_nsec *= 2;
	}
	atomic_fetch_sub(&usage->held[number], bytes);
	atomic_fetch_sub(&usage->pending[number], bytes);
	return false;
}

static void count_denied(int number, unsigned card, uint64_t bytes)
{
	struct gpushare_process *record = process_record((unsigned)number);
	uint64_t before = atomic_fetch_add(&record->denied, 1);

	atomic_store(&record->denied_bytes, bytes);
	/* A framework that frees its cache and tries again is refused often and is not in trouble.
	 */
	if (before == 0)
		log_line(LOG_INFO, "card %u: %llu bytes refused: %llu of %llu bytes are in use",
			card, (unsigned long long)bytes, (unsigned long long)counted_bytes(card),
			(unsigned long long)limit_bytes(card));
}

/* Also prevents overflow of every sum. */
static bool may_fit(unsigned card, uint64_t bytes)
{
	return bytes <= limit_bytes(card) && bytes < GPUSHARE_PENDING_BEGIN;
}

static bool may_fit_with_host(unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	uint64_t most = limit_bytes(card);

	if (kind == GPUSHARE_KIND_MANAGED)
		most += managed_limit_bytes(card);
	return bytes <= most && bytes < GPUSHARE_PENDING_BEGIN;
}

static void (*_Atomic before_refusal)(unsigned card);

void ledger_before_refusal(void (*refresh)(unsigned card))
{
	atomic_store(&before_refusal, refresh);
}

/* Kept away from the functions that every allocation calls. */
__attribute__((noinline, cold)) static bool publish_or_refuse(struct gpushare_usage *usage,
	int number, unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	void (*refresh)(unsigned card) = atomic_load(&before_refusal);
	int saved = errno;
	bool admitted = false;

	if (may_fit_with_host(card, kind, bytes)) {
		if (refresh)
			refresh(card);
		if (page_lock()) {
			process_table_reap_locked();
			admitted = publish_locked(usage, number, card, kind, bytes);
			page_unlock();
		}
	}
	if (!admitted)
		count_denied(number, card, bytes);
	errno = saved;
	return admitted;
}

/* Return with `bytes` held and pending, or false with nothing published. */
static inline bool publish(struct gpushare_usage *usage, int number, unsigned card,
	enum gpushare_kind kind, uint64_t bytes)
{
	if (may_fit(card, bytes)) {
		atomic_fetch_add(&usage->pending[number], GPUSHARE_PENDING_BEGIN + bytes);
		atomic_fetch_add(&usage->held[number], bytes);
		if (__builtin_expect(is_within(card), 1))
			return true;
		/* Withdrawn before waiting: the holder of the lock waits for it. */
		atomic_fetch_sub(&usage->held[number], bytes);
		atomic_fetch_sub(&usage->pending[number], bytes);
	}
	return publish_or_refuse(usage, number, card, kind, bytes);
}

static inline void note(
	struct gpushare_usage *usage, int number, enum gpushare_kind kind, uint64_t bytes)
{
	if (kind != GPUSHARE_KIND_BUFFER)
		atomic_fetch_add(&usage->detail[number].bytes[kind], bytes);
}

bool ledger_reserve(unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	struct gpushare_usage *usage = card_usage(card);
	int number = process_number();

	if (number < 0 || !publish(usage, number, card, kind, bytes))
		return false;
	note(usage, number, kind, bytes);
	atomic_fetch_sub(&usage->pending[number], bytes);
	return true;
}

bool ledger_count(unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	struct gpushare_usage *usage = card_usage(card);
	int number = process_number();

	if (number < 0)
		return false;
	atomic_fetch_add(&usage->held[number], bytes);
	note(usage, number, kind, bytes);
	return true;
}

void ledger_release(unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	int number = process_number_known();

	if (number < 0)
		return;
	note(card_usage(card), number, kind, -bytes);
	atomic_fetch_sub(&card_usage(card)->held[number], bytes);
}

bool ledger_reserve_context(unsigned card, uint64_t *bytes)
{
	*bytes = atomic_load(&grant_card(card)->context_bytes);
	if (!ledger_reserve(card, GPUSHARE_KIND_CONTEXT, *bytes))
		return false;
	atomic_fetch_add(&card_usage(card)->detail[process_number()].contexts, 1);
	return true;
}

bool ledger_count_context(unsigned card, uint64_t *bytes)
{
	const struct gpushare_grant_card *grant = grant_card(card);

	*bytes =
		free_bytes(atomic_load(&grant->context_bytes), atomic_load(&grant->overhead_bytes));
	if (!ledger_count(card, GPUSHARE_KIND_CONTEXT, *bytes))
		return false;
	atomic_fetch_add(&card_usage(card)->detail[process_number()].contexts, 1);
	return true;
}

void ledger_release_context(unsigned card, uint64_t bytes)
{
	int number = process_number_known();

	if (number < 0)
		return;
	atomic_fetch_sub(&card_usage(card)->detail[number].contexts, 1);
	ledger_release(card, GPUSHARE_KIND_CONTEXT, bytes);
}

static void share(_Atomic uint64_t *elements, uint64_t bytes)
{
	int number = process_number();

	if (number >= 0)
		atomic_fetch_add(&elements[number], bytes);
}

void ledger_export(unsigned card, uint64_t bytes)
{
	share(card_usage(card)->exported, bytes);
}

void ledger_unexport(unsigned card, uint64_t bytes)
{
	share(card_usage(card)->exported, -bytes);
}

void ledger_import(unsigned card, uint64_t bytes)
{
	share(card_usage(card)->imported, bytes);
	atomic_store(&pages.status->sharing, 1);
}

void ledger_unimport(unsigned card, uint64_t bytes)
{
	share(card_usage(card)->imported, -bytes);
}

/* In `shares`: calls in progress, and whether one has succeeded. */
#define HAS_SHARED (UINT32_C(1) << 31)

void ledger_share(void)
{
	int number = process_number();

	if (number >= 0)
		atomic_fetch_add(&process_record((unsigned)number)->shares, 1);
}

void ledger_shared(bool succeeded)
{
	int number = process_number_known();

	if (number < 0)
		return;
	if (succeeded)
		atomic_fetch_or(&process_record((unsigned)number)->shares, HAS_SHARED);
	atomic_fetch_sub(&process_record((unsigned)number)->shares, 1);
}

void ledger_note_kept(unsigned card, uint64_t bytes)
{
	int number = process_number_known();

	if (number >= 0)
		atomic_store(&card_usage(card)->detail[number].pool_kept_bytes, bytes);
}
