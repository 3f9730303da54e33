/* SPDX-License-Identifier: Apache-2.0
 *
 * What this program waits for: the control socket, bells, and the time.
 */
#ifndef GPUSHARE_SCHEDULER_LOOP_H
#define GPUSHARE_SCHEDULER_LOOP_H

#include <stdbool.h>
#include <stdint.h>

/* Part of whatever has something to say; it stays where it is while it is read. */
struct source {
	int fd;
	void (*ready)(struct source *source, uint64_t now_ns);
};

/* False with errno. */
bool loop_begin(void);

/* Call `ready` whenever `fd` can be read. False with errno. */
bool loop_read(struct source *source);
/* Do not, for a while. */
void loop_mute(struct source *source);
void loop_hear(struct source *source);
/* No more; what this round still has for it is dropped. */
void loop_forget(struct source *source);

/* Serve until nobody is left: no tenant, and no client where there was one. False with errno. */
bool loop_run(void);

#endif
