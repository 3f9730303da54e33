/* SPDX-License-Identifier: Apache-2.0
 *
 * Combines what a tenant's processes claim about their work on one card into one figure each. The
 * file belongs to the tenant, which may write anything or truncate it: it is read and never mapped,
 * and no figure grows faster than time.
 */
#ifndef GPUSHARE_SCHEDULER_STATUS_PAGE_H
#define GPUSHARE_SCHEDULER_STATUS_PAGE_H

#include "card.h"

#include <stdbool.h>
#include <stdint.h>

/* The last sample of one process. */
struct process_seen {
	uint64_t ended_busy_ns; /* its busy_ns: a lower value is another process */
	uint64_t busy_ns;	/* the highest so far, including pending work */
	uint64_t submitted;
};

/* All processes of one tenant on one card. All zero before the first sample. */
struct status_page {
	uint64_t at_ns;		     /* of the last look */
	uint64_t since_ns;	     /* of the first */
	uint64_t busy_ns, submitted; /* including processes that have exited */
	uint64_t said_busy_ns;	     /* the plain sum of the processes' busy_ns, for the page */
	uint64_t counted_ns;	     /* when the processes were last counted */
	uint32_t count;
	struct process_seen processes[GPUSHARE_MAX_PROCESSES];
};

/* Read the work on the tenant's card `number` from the status file open at `fd`. `count`: there may
 * be more processes than at the last sample. */
void status_page_read(struct status_page *page, int fd, uint32_t number, bool count,
	uint64_t now_ns, struct seen *seen);

/* The same for `count` records that were already read. */
void status_page_sum(struct status_page *page, const struct gpushare_work *records, uint32_t count,
	uint64_t now_ns, struct seen *seen);

#endif
