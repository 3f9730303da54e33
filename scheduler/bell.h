/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's bell: a FIFO into which its processes write a byte when there is something to see.
 * Anything may come out of it, at any rate; what was written is never looked at.
 */
#ifndef GPUSHARE_SCHEDULER_BELL_H
#define GPUSHARE_SCHEDULER_BELL_H

#include <stdbool.h>
#include <stdint.h>

struct bell {
	int fd;
	uint32_t left;		/* rings that are heard before it has to wait */
	uint64_t refilled_ns;	/* when `left` was last counted up */
	uint64_t deaf_until_ns; /* 0: it is heard */
};

/* Open the bell in `directory`; 0 or an errno: ENXIO where it is no FIFO. */
int bell_open(struct bell *bell, int directory, uint64_t now_ns);
void bell_close(struct bell *bell);

/* Take out what is in it. False: it was heard too often, and is deaf until `deaf_until_ns`. */
bool bell_drain(struct bell *bell, uint64_t now_ns);

#endif
