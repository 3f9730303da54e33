/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: the page's lock only.
 */
#include "members.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "channel/log.h"
#include "page_lock.h"
#include "pages.h"
#include "process.h"

_Atomic int member_joined = -1;

/* In one go for whoever reads it: nobody else writes it any more, or yet. */
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
		/* Imports before exports: what is freed must not look like an orphan. */
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

	if (starttime == 0) /* it had no /proc */
		return kill(pid, 0) != 0 && errno == ESRCH;
	return process_starttime(pid) != starttime;
}

void members_reap_locked(void)
{
	unsigned count = process_count();
	int own = atomic_load(&member_joined);

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

	if (atomic_load(&member_joined) >= 0)
		return NULL;
	members_reap_locked();
	int number = number_find(pid, starttime);
	if (number < 0)
		return "too many processes of this container hold the GPU at the same time";
	if (!life_sign_set((unsigned)number))
		return "the status page cannot be locked (needs Linux 3.15 or newer)";

	struct gpushare_process *record = process_record((unsigned)number);
	usage_clear((unsigned)number);
	atomic_store(&record->starttime, starttime);
	atomic_store(&record->denied, 0);
	atomic_store(&record->denied_bytes, 0);
	atomic_store(&record->pid, pid); /* from here on others may reap it */
	if (process_count() <= (unsigned)number)
		atomic_store(&pages.status->high_water, (uint32_t)number + 1);
	atomic_store(&member_joined, number);
	return NULL;
}

const char *members_join(void)
{
	if (atomic_load_explicit(&member_joined, memory_order_acquire) >= 0)
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

int member_number_anew(void)
{
	const char *why = members_join();

	if (why)
		log_line(LOG_ERROR, "%s", why);
	return why ? -1 : atomic_load(&member_joined);
}

void members_reap(void)
{
	int saved = errno;

	if (page_lock()) {
		members_reap_locked();
		page_unlock();
	}
	errno = saved;
}

void members_forget(void)
{
	atomic_store(&member_joined, -1);
}
