/* SPDX-License-Identifier: Apache-2.0
 *
 * The control socket: gpushared says who the tenants are (message.h). Root's, or of who runs this.
 */
#ifndef GPUSHARE_SCHEDULER_CONTROL_H
#define GPUSHARE_SCHEDULER_CONTROL_H

#include "message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Listen at `path`, where nobody else does; false with errno (EWOULDBLOCK: somebody does). */
bool control_listen(const char *path);

/* Take the socket away: nobody is left. */
void control_close(const char *path);

/* Whether all tenants have been named, from HELLO to COMPLETE; until then nothing is decided. */
bool control_is_told(void);

/* Whether somebody is there to tell of tenants, or nobody has come yet. */
bool control_is_expected(void);

/* Whether `length` bytes are a message that may be acted on: 0, EINVAL, or EPROTO for another
 * version's. */
int message_check(const struct schedule_message *message, size_t length);

#endif
