/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's wake-ups: a FIFO into which its processes write a byte when there is something to
 * read. It may contain anything, at any rate; the bytes are ignored.
 */
#ifndef GPUSHARE_SCHEDULER_WAKEUP_H
#define GPUSHARE_SCHEDULER_WAKEUP_H

#include <stdbool.h>
#include <stdint.h>

struct wakeup {
	int fd;
	uint32_t left;		 /* wake-ups that are accepted before it is muted */
	uint64_t refilled_ns;	 /* when `left` was last increased */
	uint64_t muted_until_ns; /* 0: it is heard */
};

/* Open the FIFO in `directory`; 0 or an errno: ENXIO if it is not a FIFO. */
int wakeup_open(struct wakeup *wakeup, int directory, uint64_t now_ns);
void wakeup_close(struct wakeup *wakeup);

/* Empty it. False: there were too many wake-ups, and it is muted until `muted_until_ns`. */
bool wakeup_drain(struct wakeup *wakeup, uint64_t now_ns);

#endif
