/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: the page's lock only.
 */
#include "process_table.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "channel/log.h"
#include "page_lock.h"
#include "pages.h"
#include "process.h"

_Atomic int process_joined = -1;

/* At once for any reader: no other process writes the record at this time. */
static void work_clear(struct gpushare_work *work)
{
	const uint32_t change = atomic_load(&work->begun) + 1;

	atomic_store(&work->begun, change);
	atomic_store(&work->waiting, 0);
	atomic_store(&work->busy_ns, 0);
	atomic_store(&work->since_ns, 0);
	atomic_store(&work->pending_ns, 0);
	atomic_store(&work->submitted, 0);
	atomic_store(&work->ended, 0);
	atomic_store(&work->throttled_ns, 0);
	atomic_store(&work->forced, 0);
	atomic_store(&work->done, change);
}

static void usage_clear(unsigned number)
{
	for (unsigned card = 0; card < pages.card_count; card++) {
		struct gpushare_usage *usage = card_usage(card);
		struct gpushare_detail *detail = &usage->detail[number];
		/* Imports before exports: freed memory must not look orphaned. */
		atomic_store(&usage->imported[number], 0);
		atomic_store(&usage->held[number], 0);
		atomic_store(&usage->pending[number], 0);
		atomic_store(&usage->exported[number], 0);
		for (unsigned kind = 0; kind < GPUSHARE_KINDS; kind++)
			atomic_store(&detail->bytes[kind], 0);
		atomic_store(&detail->pool_kept_bytes, 0);
		atomic_store(&detail->contexts, 0);
		work_clear(card_work(card, number));
	}
}

static bool process_is_gone(const struct gpushare_process *record)
{
	pid_t pid = (pid_t)atomic_load(&record->pid);
	uint64_t starttime = atomic_load(&record->starttime);

	/* Asked first, because /proc takes ten times as long; and a record may have no start time.
	 */
	if (kill(pid, 0) != 0 && errno == ESRCH)
		return true;
	return starttime != 0 && process_starttime(pid) != starttime;
}

void process_table_reap_locked(void)
{
	unsigned count = process_count();
	int own = atomic_load(&process_joined);

	for (unsigned number = 0; number < count; number++) {
		struct gpushare_process *record = process_record(number);
		if (atomic_load(&record->pid) == 0 || (int)number == own)
			continue;
		if (life_sign_is_set(number) || !process_is_gone(record))
			continue;
		usage_clear(number);
		atomic_store(&record->pid, 0);
	}
}

/* The number for this process: that of the program before exec, or the first free one. -1: none is
 * left. */
static int number_find(uint32_t pid, uint64_t starttime)
{
	unsigned count = process_count();
	int vacant = count < GPUSHARE_MAX_PROCESSES ? (int)count : -1;

	for (unsigned number = count; number-- > 0;) {
		struct gpushare_process *record = process_record(number);
		uint32_t holder = atomic_load(&record->pid);
		if (holder == 0)
			vacant = (int)number;
		/* A record with a life sign belongs to this very process, through another copy of
		 * this library (dlmopen): the memory of that copy is still held. */
		else if (holder == pid && atomic_load(&record->starttime) == starttime &&
			 !life_sign_is_set(number))
			return (int)number;
	}
	return vacant;
}

static const char *join_locked(void)
{
	uint32_t pid = (uint32_t)getpid();
	uint64_t starttime = process_starttime(0);

	if (atomic_load(&process_joined) >= 0)
		return NULL;
	process_table_reap_locked();
	int number = number_find(pid, starttime);
	if (number < 0)
		return "too many processes of this container use the GPU at the same time";
	if (!life_sign_set((unsigned)number))
		return "the status page cannot be locked (needs Linux 3.15 or newer)";

	struct gpushare_process *record = process_record((unsigned)number);
	usage_clear((unsigned)number);
	atomic_store(&record->starttime, starttime);
	atomic_store(&record->shares, 0);
	atomic_store(&record->denied, 0);
	atomic_store(&record->denied_bytes, 0);
	atomic_store(&record->pid, pid); /* from here on other processes may clear it */
	if (process_count() <= (unsigned)number)
		atomic_store(&pages.status->high_water, (uint32_t)number + 1);
	atomic_store(&process_joined, number);
	return NULL;
}

const char *process_table_join(void)
{
	if (atomic_load_explicit(&process_joined, memory_order_acquire) >= 0)
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

int process_number_rejoin(void)
{
	const char *why = process_table_join();

	if (why)
		log_line(LOG_ERROR, "%s", why);
	return why ? -1 : atomic_load(&process_joined);
}

void process_table_reap(void)
{
	int saved = errno;

	if (page_lock()) {
		process_table_reap_locked();
		page_unlock();
	}
	errno = saved;
}

/* A check asks the kernel about each record. Spread over this time, even 1024 records cost a
 * program that only reads less than a hundredth of its time. */
#define REFRESH_NS_PER_RECORD 100000
#define REFRESH_NS 10000000

__attribute__((noinline, cold)) static void reap_if_not_locked(void)
{
	int saved = errno;

	if (page_try_lock()) {
		process_table_reap_locked();
		page_unlock();
	}
	errno = saved;
}

void process_table_refresh(void)
{
	static _Atomic uint64_t next_ns;
	struct timespec now;

	/* A tick old, and a quarter of the price of the exact clock. */
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	uint64_t due_ns = atomic_load_explicit(&next_ns, memory_order_relaxed);
	if (__builtin_expect(now_ns < due_ns, 1))
		return;
	uint64_t next = now_ns + REFRESH_NS + (uint64_t)process_count() * REFRESH_NS_PER_RECORD;
	if (atomic_compare_exchange_strong(&next_ns, &due_ns, next))
		reap_if_not_locked();
}

void process_table_forget(void)
{
	atomic_store(&process_joined, -1);
}
