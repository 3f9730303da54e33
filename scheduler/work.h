/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tenant's processes say of their work on one card, made into one figure each. The file is
 * the tenant's, and may say anything or be truncated: it is read and never mapped, and no figure
 * grows faster than time does.
 */
#ifndef GPUSHARE_SCHEDULER_WORK_H
#define GPUSHARE_SCHEDULER_WORK_H

#include "card.h"

#include <stdbool.h>
#include <stdint.h>

/* One process's, as it was seen before. */
struct work_seen {
	uint64_t ended_busy_ns; /* its busy_ns: less than before is another process */
	uint64_t busy_ns;	/* the most that was made of it, with what was pending */
	uint64_t submitted;
};

/* All of one tenant on one card. Zeroes are a tenant that was not looked at yet. */
struct work {
	uint64_t at_ns;		     /* of the last look */
	uint64_t since_ns;	     /* of the first */
	uint64_t busy_ns, submitted; /* of processes that have ended too */
	uint64_t said_busy_ns;	     /* the plain sum of the processes' busy_ns, for the page */
	uint64_t counted_ns;	     /* when the processes were last counted */
	uint32_t count;
	struct work_seen processes[GPUSHARE_MAX_PROCESSES];
};

/* Read what stands in the status file open at `fd` of the tenant's card `number`, now. `count`:
 * there may be more processes than at the last look. */
void work_read(
	struct work *work, int fd, uint32_t number, bool count, uint64_t now_ns, struct seen *seen);

/* The same of `count` records that were read. */
void work_sum(struct work *work, const struct gpushare_work *records, uint32_t count,
	uint64_t now_ns, struct seen *seen);

#endif
