/* SPDX-License-Identifier: Apache-2.0
 *
 * The events that this program waits for: the control socket, wake-ups, and timers.
 */
#ifndef GPUSHARE_SCHEDULER_LOOP_H
#define GPUSHARE_SCHEDULER_LOOP_H

#include <stdbool.h>
#include <stdint.h>

/* Part of every event source; it must not move while it is read. */
struct source {
	int fd;
	void (*ready)(struct source *source, uint64_t now_ns);
};

/* False with errno. */
bool loop_begin(void);

/* Call `ready` whenever `fd` is readable. False with errno. */
bool loop_read(struct source *source);
/* Stop temporarily. */
void loop_mute(struct source *source);
void loop_unmute(struct source *source);
/* Stop for good; further events of this round are dropped. */
void loop_forget(struct source *source);

/* Serve until no tenant is left, and no client if there was one. False with errno. */
bool loop_run(void);

#endif
