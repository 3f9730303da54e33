/* SPDX-License-Identifier: Apache-2.0
 *
 * This process's line to the daemon: a socket of the tenant's own, one way. Nothing here waits, and
 * nothing fails: a daemon that is away misses the message.
 */
#ifndef GPUSHARE_CHANNEL_H
#define GPUSHARE_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

/* Say, once, that this process holds the driver now. Needs pages_open. */
void channel_hello(void);

void channel_log(unsigned level, const char *text);

/* Say that the driver has no `bytes` on `card`, which were promised. Whether a daemon hears it. */
bool channel_lacks(unsigned card, uint64_t bytes);

void channel_before_fork(void);
void channel_after_fork_in_parent(void);
void channel_after_fork_in_child(void);

#endif
