/* SPDX-License-Identifier: Apache-2.0
 *
 * This process's line to the daemon: a socket of the tenant's own, one way. Nothing here waits, and
 * nothing fails: a daemon that is away misses the message.
 */
#ifndef GPUSHARE_CHANNEL_H
#define GPUSHARE_CHANNEL_H

/* Say, once, that this process holds the driver now. Needs pages_open. */
void channel_hello(void);

void channel_log(unsigned level, const char *text);

void channel_before_fork(void);
void channel_after_fork_in_parent(void);
void channel_after_fork_in_child(void);

#endif
