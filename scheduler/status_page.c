/* SPDX-License-Identifier: Apache-2.0 */
#include "status_page.h"

#include "clock.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define COUNT_NS                                                                                   \
	(25 * MS) /* one more process, which starts working next to others, sends no wake-up */
#define READS                                                                                      \
	4 /* of a record that changes meanwhile; a record whose writer was killed keeps changing   \
	     forever */

static struct gpushare_work records[GPUSHARE_MAX_PROCESSES];

/* A copy by the kernel, which does not change any more. */
static bool is_whole(const struct gpushare_work *record)
{
	return atomic_load_explicit(&record->begun, memory_order_relaxed) ==
	       atomic_load_explicit(&record->done, memory_order_relaxed);
}

static uint64_t of(const _Atomic uint64_t *field)
{
	return atomic_load_explicit(field, memory_order_relaxed);
}

static uint64_t added(uint64_t left, uint64_t right)
{
	return left > UINT64_MAX - right ? UINT64_MAX : left + right;
}

/* How many records to read: 0 if the header cannot be read. */
static uint32_t high_water(int fd)
{
	uint32_t high = 0;
	const off_t at = offsetof(struct gpushare_status_header, high_water);

	if (pread(fd, &high, sizeof(high), at) != (ssize_t)sizeof(high))
		return 0;
	return high < GPUSHARE_MAX_PROCESSES ? high : GPUSHARE_MAX_PROCESSES;
}

/* The kernel copies upwards, so `done` is read before the fields and `begun` after them. */
static uint32_t records_read(int fd, uint32_t number, uint32_t count)
{
	const off_t begin =
		GPUSHARE_STATUS_WORK_OFFSET + (off_t)number * GPUSHARE_STATUS_WORK_BYTES;
	ssize_t got = pread(fd, records, count * sizeof(records[0]), begin);

	count = got < 0 ? 0 : (uint32_t)((size_t)got / sizeof(records[0]));
	for (uint32_t process = 0; process < count; process++) {
		const off_t at = begin + (off_t)(process * sizeof(records[0]));
		for (int read = 1; read < READS && !is_whole(&records[process]); read++)
			if (pread(fd, &records[process], sizeof(records[0]), at) !=
				(ssize_t)sizeof(records[0]))
				return process;
	}
	return count;
}

static bool is_pending(const struct gpushare_work *record)
{
	return of(&record->ended) < of(&record->submitted);
}

/* `waiting` plus the threads of one more process. */
static uint32_t threads(uint32_t waiting, const struct gpushare_work *record)
{
	uint32_t more = atomic_load_explicit(&record->waiting, memory_order_relaxed);
	return waiting > UINT32_MAX - more ? UINT32_MAX : waiting + more;
}

/* Up to now, for pending work; a time in the future counts as none. */
static uint64_t busy_until(const struct gpushare_work *record, bool pending, uint64_t now_ns)
{
	uint64_t busy_ns = of(&record->busy_ns), since_ns = of(&record->since_ns);
	return pending && since_ns < now_ns ? added(busy_ns, now_ns - since_ns) : busy_ns;
}

/* The card time of a process since the last sample. The end of work is observed a little late, so a
 * figure may be lower than an earlier one: the highest stands until it is exceeded. */
static uint64_t taken(struct process_seen *before, const struct gpushare_work *record,
	uint64_t busy_ns, uint64_t most_ns)
{
	const uint64_t ended_busy_ns = of(&record->busy_ns);
	uint64_t more = 0;

	if (ended_busy_ns < before->ended_busy_ns)
		before->busy_ns = 0;
	before->ended_busy_ns = ended_busy_ns;
	if (busy_ns > before->busy_ns)
		more = busy_ns - before->busy_ns;
	/* No process is busy for longer than has passed. */
	if (more > most_ns)
		more = most_ns;
	before->busy_ns += more;
	return more;
}

static uint64_t submitted_since(struct process_seen *before, uint64_t submitted)
{
	uint64_t more = submitted >= before->submitted ? submitted - before->submitted : submitted;
	before->submitted = submitted;
	return more;
}

/* The first sample: earlier time is not charged. */
static void status_page_begin(
	struct status_page *page, const struct gpushare_work *from, uint32_t count, uint64_t now_ns)
{
	page->since_ns = page->at_ns = now_ns;
	for (uint32_t process = 0; process < count; process++) {
		const struct gpushare_work *record = &from[process];
		struct process_seen *before = &page->processes[process];
		before->ended_busy_ns = of(&record->busy_ns);
		before->submitted = of(&record->submitted);
		before->busy_ns = busy_until(record, is_pending(record), now_ns);
	}
}

void status_page_sum(struct status_page *page, const struct gpushare_work *from, uint32_t count,
	uint64_t now_ns, struct seen *seen)
{
	if (!page->at_ns)
		status_page_begin(page, from, count, now_ns);
	uint64_t idle_ns = page->since_ns;
	const uint64_t passed_ns = now_ns - page->at_ns;
	*seen = (struct seen){.at_ns = now_ns};
	page->said_busy_ns = 0;
	for (uint32_t process = 0; process < count; process++) {
		const struct gpushare_work *record = &from[process];
		struct process_seen *before = &page->processes[process];
		const uint64_t since_ns = of(&record->since_ns);
		const bool pending = is_pending(record);

		page->busy_ns +=
			taken(before, record, busy_until(record, pending, now_ns), passed_ns);
		page->submitted += submitted_since(before, of(&record->submitted));
		page->said_busy_ns = added(page->said_busy_ns, of(&record->busy_ns));
		seen->waiting = threads(seen->waiting, record);
		if (pending) {
			seen->contexts++;
			if (since_ns > seen->progress_ns && since_ns <= now_ns)
				seen->progress_ns = since_ns;
			seen->pending_ns = added(seen->pending_ns, of(&record->pending_ns));
		} else if (since_ns > idle_ns) {
			idle_ns = since_ns;
		}
	}
	seen->busy_ns = page->busy_ns;
	seen->submitted = page->submitted;
	if (!seen->contexts)
		seen->idle_ns = idle_ns < now_ns && idle_ns ? idle_ns : now_ns;
	page->at_ns = now_ns;
}

void status_page_read(struct status_page *page, int fd, uint32_t number, bool count,
	uint64_t now_ns, struct seen *seen)
{
	if (count || now_ns - page->counted_ns >= COUNT_NS) {
		page->count = high_water(fd);
		page->counted_ns = now_ns;
	}
	status_page_sum(page, records, records_read(fd, number, page->count), now_ns, seen);
}
