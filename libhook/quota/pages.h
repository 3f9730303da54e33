/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's two pages-files, mapped: `grant` (what was promised, read-only) and `status` (what
 * is used). gpushare_abi.h says what is in them and who writes what.
 */
#ifndef GPUSHARE_PAGES_H
#define GPUSHARE_PAGES_H

#include <stdbool.h>
#include <sys/types.h>

#include "gpushare_abi.h"

enum pages_access { PAGES_READ, PAGES_WRITE };

struct pages {
	const struct gpushare_grant_header *grant;
	struct gpushare_status_header *status;
	unsigned card_count;
	dev_t status_device; /* tells the status file from what else a descriptor may have become */
	ino_t status_inode;
	char directory[256];
};

#pragma GCC visibility push(hidden)
extern struct pages pages;
#pragma GCC visibility pop

/* Map both files; once is enough for a process and its forked children. Return NULL, or why not in
 * words that stand behind "gpushare: ". Any thread may call it at any time. */
const char *pages_open(enum pages_access access);

/* True once pages_open has succeeded. */
bool pages_are_open(void);

/* A new descriptor of the status file, or -1: for locks. */
int pages_open_status(void);

void pages_before_fork(void);
void pages_after_fork(void);

static inline const struct gpushare_grant_card *grant_card(unsigned card)
{
	return (const void *)((const char *)pages.grant + GPUSHARE_GRANT_CARD_OFFSET(card));
}

static inline struct gpushare_process *process_record(unsigned number)
{
	char *first = (char *)pages.status + GPUSHARE_STATUS_PROCESS_OFFSET;
	return (struct gpushare_process *)(void *)first + number;
}

static inline struct gpushare_usage *card_usage(unsigned card)
{
	char *first = (char *)pages.status + GPUSHARE_STATUS_USAGE_OFFSET;
	return (struct gpushare_usage *)(void *)(first + card * (size_t)GPUSHARE_STATUS_CARD_BYTES);
}

/* The work on a card of one process. */
static inline struct gpushare_work *card_work(unsigned card, unsigned number)
{
	char *first = (char *)pages.status + GPUSHARE_STATUS_WORK_OFFSET;
	first += card * (size_t)GPUSHARE_STATUS_WORK_BYTES;
	return (struct gpushare_work *)(void *)first + number;
}

/* One more than the highest process number in use. The tenant can write anything there. */
static inline unsigned process_count(void)
{
	unsigned count = atomic_load(&pages.status->high_water);
	return count <= GPUSHARE_MAX_PROCESSES ? count : GPUSHARE_MAX_PROCESSES;
}

#endif
