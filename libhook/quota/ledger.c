/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserve: publish the bytes as pending, sum all slots, then settle them as used. Of two that race
 * at least one sees both, so the quota is never exceeded; that both see both and neither gets what
 * one of them could have is what the second decision under the page's lock is for.
 *
 * Lock order: the page's lock only, never held while the driver is called.
 */
#include "ledger.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include "channel/log.h"
#include "page_lock.h"
#include "pages.h"
#include "process.h"
#include "usage.h"

/* A process that is being stopped between two of its own writes leaves bytes undecided. */
#define SETTLE_WAIT_NS 2000000000

static _Atomic int joined = -1; /* this process's number */

static void slots_clear(unsigned number)
{
	for (unsigned card = 0; card < pages.card_count; card++) {
		struct gpushare_slot *slot = process_slot(card, number);
		atomic_store(&slot->pending_bytes, 0);
		atomic_store(&slot->used_bytes, 0);
		atomic_store(&slot->contexts, 0);
	}
}

static bool process_is_gone(const struct gpushare_process *record)
{
	pid_t pid = (pid_t)atomic_load(&record->pid);
	uint64_t starttime = atomic_load(&record->starttime);

	if (starttime == 0) /* it had no /proc */
		return kill(pid, 0) != 0 && errno == ESRCH;
	return process_starttime(pid) != starttime;
}

/* Clear what dead processes left. The caller holds the page's lock. */
static void reap(void)
{
	unsigned count = process_count();
	int own = atomic_load(&joined);

	for (unsigned number = 0; number < count; number++) {
		struct gpushare_process *record = process_record(number);
		if (atomic_load(&record->pid) == 0 || (int)number == own)
			continue;
		if (life_sign_is_set(number) || !process_is_gone(record))
			continue;
		slots_clear(number);
		atomic_store(&record->pid, 0);
	}
}

/* The number for this process: of the program that it was before exec, or the first free one.
 * -1: none is left. */
static int number_find(uint32_t pid, uint64_t starttime)
{
	unsigned count = process_count();
	int vacant = count < GPUSHARE_MAX_PROCESSES ? (int)count : -1;

	for (unsigned number = count; number-- > 0;) {
		struct gpushare_process *record = process_record(number);
		uint32_t holder = atomic_load(&record->pid);
		if (holder == 0)
			vacant = (int)number;
		/* With a life sign it is this very process, through another copy of this library
		 * (dlmopen): that one's memory is still held. */
		else if (holder == pid && atomic_load(&record->starttime) == starttime &&
			 !life_sign_is_set(number))
			return (int)number;
	}
	return vacant;
}

static const char *join_locked(void)
{
	uint32_t pid = (uint32_t)getpid();
	uint64_t starttime = process_starttime((pid_t)pid);

	if (atomic_load(&joined) >= 0)
		return NULL;
	reap();
	int number = number_find(pid, starttime);
	if (number < 0)
		return "too many processes of this container hold the GPU at the same time";
	if (!life_sign_set((unsigned)number))
		return "the status page cannot be locked (needs Linux 3.15 or newer)";

	struct gpushare_process *record = process_record((unsigned)number);
	slots_clear((unsigned)number);
	atomic_store(&record->starttime, starttime);
	atomic_store(&record->denied, 0);
	atomic_store(&record->pid, pid); /* from here on others may reap it */
	if (process_count() <= (unsigned)number)
		atomic_store(&pages.status->high_water, (uint32_t)number + 1);
	atomic_store(&joined, number);
	return NULL;
}

const char *ledger_join(void)
{
	if (atomic_load_explicit(&joined, memory_order_acquire) >= 0)
		return NULL;
	if (!pages_are_open())
		return "the quota is not known yet";
	if (!page_lock())
		return "the status page is locked by another process";
	int saved = errno;
	const char *why = join_locked();
	page_unlock();
	errno = saved;
	return why;
}

/* Out of the way of those that every allocation takes. */
#define RARELY __attribute__((noinline, cold))

/* In a child after fork, at the first call. */
RARELY static struct gpushare_slot *own_slot_anew(unsigned card)
{
	const char *why = ledger_join();

	if (why) {
		log_line(LOG_ERROR, "%s", why);
		return NULL;
	}
	return process_slot(card, (unsigned)atomic_load(&joined));
}

static struct gpushare_slot *own_slot(unsigned card)
{
	int number = atomic_load_explicit(&joined, memory_order_acquire);

	return number >= 0 ? process_slot(card, (unsigned)number) : own_slot_anew(card);
}

static bool admits(unsigned card, const struct usage *usage, uint64_t kept_bytes)
{
	uint64_t twice = kept_bytes < usage->beside_bytes ? kept_bytes : usage->beside_bytes;

	return usage->bytes - twice <= limit_bytes(card);
}

/* Decide with the page's lock held: whoever else is refused withdraws and waits for the lock, so
 * what is pending beside our own bytes settles soon, and then the sum is exact. */
static bool publish_locked(
	struct gpushare_slot *slot, unsigned card, uint64_t bytes, uint64_t kept_bytes)
{
	struct timespec pause = {.tv_nsec = 10000};

	atomic_fetch_add(&slot->pending_bytes, bytes);
	for (uint64_t waited_ns = 0;; waited_ns += (uint64_t)pause.tv_nsec) {
		struct usage usage = usage_of(card);
		if (admits(card, &usage, kept_bytes))
			return true;
		if (usage.pending_bytes == bytes || waited_ns > SETTLE_WAIT_NS)
			break;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 1000000)
			pause.tv_nsec *= 2;
	}
	atomic_fetch_sub(&slot->pending_bytes, bytes);
	return false;
}

static void count_denied(unsigned card, uint64_t bytes)
{
	int number = atomic_load(&joined);
	uint64_t before = atomic_fetch_add(&process_record((unsigned)number)->denied, 1);

	/* A framework that frees its cache and tries again is refused often and is not in trouble.
	 */
	if (before == 0)
		log_line(LOG_INFO, "card %u: %llu bytes refused: %llu of %llu bytes are in use",
			card, (unsigned long long)bytes, (unsigned long long)usage_of(card).bytes,
			(unsigned long long)limit_bytes(card));
}

RARELY static bool publish_or_refuse(
	struct gpushare_slot *slot, unsigned card, uint64_t bytes, uint64_t kept_bytes)
{
	int saved = errno;
	bool admitted = false;

	if (bytes <= limit_bytes(card) && page_lock()) {
		reap();
		admitted = publish_locked(slot, card, bytes, kept_bytes);
		page_unlock();
	}
	if (!admitted)
		count_denied(card, bytes);
	errno = saved;
	return admitted;
}

/* Return with `bytes` pending in `slot`, or false with nothing published. */
static inline bool publish_at_once(struct gpushare_slot *slot, unsigned card, uint64_t bytes)
{
	if (bytes <= limit_bytes(card)) { /* else the sum could overflow */
		atomic_fetch_add(&slot->pending_bytes, bytes);
		if (__builtin_expect(usage_of(card).bytes <= limit_bytes(card), 1))
			return true;
		/* Withdrawn before the wait: who holds the lock waits for it. */
		atomic_fetch_sub(&slot->pending_bytes, bytes);
	}
	return false;
}

static inline bool publish(struct gpushare_slot *slot, unsigned card, uint64_t bytes)
{
	return publish_at_once(slot, card, bytes) || publish_or_refuse(slot, card, bytes, 0);
}

static inline bool settle(struct gpushare_slot *slot, uint64_t bytes)
{
	/* In this order; usage_of says why. */
	atomic_fetch_add(&slot->used_bytes, bytes);
	atomic_fetch_sub(&slot->pending_bytes, bytes);
	return true;
}

bool ledger_reserve(unsigned card, uint64_t bytes)
{
	struct gpushare_slot *slot = own_slot(card);

	return slot && publish(slot, card, bytes) && settle(slot, bytes);
}

bool ledger_reserve_at_once(unsigned card, uint64_t bytes)
{
	struct gpushare_slot *slot = own_slot(card);

	return slot && publish_at_once(slot, card, bytes) && settle(slot, bytes);
}

bool ledger_reserve_kept(unsigned card, uint64_t bytes, uint64_t kept_bytes)
{
	struct gpushare_slot *slot = own_slot(card);

	return slot && publish_or_refuse(slot, card, bytes, kept_bytes) && settle(slot, bytes);
}

void ledger_release(unsigned card, uint64_t bytes)
{
	int number = atomic_load_explicit(&joined, memory_order_acquire);

	if (number >= 0)
		atomic_fetch_sub(&process_slot(card, (unsigned)number)->used_bytes, bytes);
}

bool ledger_reserve_context(unsigned card)
{
	uint64_t bytes = atomic_load(&grant_card(card)->context_bytes);
	struct gpushare_slot *slot = own_slot(card);

	if (!slot || !publish(slot, card, bytes))
		return false;
	atomic_fetch_add(&slot->contexts, 1);
	atomic_fetch_sub(&slot->pending_bytes, bytes);
	return true;
}

bool ledger_count_context(unsigned card)
{
	struct gpushare_slot *slot = own_slot(card);

	if (slot)
		atomic_fetch_add(&slot->contexts, 1);
	return slot != NULL;
}

void ledger_release_context(unsigned card)
{
	int number = atomic_load_explicit(&joined, memory_order_acquire);

	if (number >= 0)
		atomic_fetch_sub(&process_slot(card, (unsigned)number)->contexts, 1);
}

void ledger_forget(void)
{
	atomic_store(&joined, -1);
}
