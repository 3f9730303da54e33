/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's two page files, mapped: `grant` (the quota, read-only) and `status` (the usage).
 * gpushare_abi.h defines their contents and the writer of each field.
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
	dev_t status_device; /* identifies the status file, because a descriptor number may be
				reused */
	ino_t status_inode;
	char directory[256];
};

#pragma GCC visibility push(hidden)
extern struct pages pages;
#pragma GCC visibility pop

/* Map both files; once is enough for a process and its forked children. Return NULL, or the reason
 * as text to follow "gpushare: ". Any thread may call it at any time. */
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

/* The work of one process on a card. */
static inline struct gpushare_work *card_work(unsigned card, unsigned number)
{
	char *first = (char *)pages.status + GPUSHARE_STATUS_WORK_OFFSET;
	first += card * (size_t)GPUSHARE_STATUS_WORK_BYTES;
	return (struct gpushare_work *)(void *)first + number;
}

/* The highest process number in use, plus one. The tenant can write any value there. */
static inline unsigned process_count(void)
{
	unsigned count = atomic_load(&pages.status->high_water);
	return count <= GPUSHARE_MAX_PROCESSES ? count : GPUSHARE_MAX_PROCESSES;
}

#endif
