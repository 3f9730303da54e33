/* SPDX-License-Identifier: Apache-2.0
 *
 * This process's connection to the daemon: the tenant's own socket, one way, from the first message
 * on. Nothing here waits or fails: a daemon that is not running misses the message.
 */
#ifndef GPUSHARE_CHANNEL_H
#define GPUSHARE_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

void channel_log(unsigned level, const char *text);

/* Report that the driver could not allocate `bytes` on `card` although they are within the quota.
 * Returns whether a daemon received the report. */
bool channel_report_shortfall(unsigned card, uint64_t bytes);

/* Report that a call of the driver waits until the tenant is not evicted any more. */
void channel_ask_for_restore(void);

void channel_before_fork(void);
void channel_after_fork_in_parent(void);
void channel_after_fork_in_child(void);

#endif
