/* SPDX-License-Identifier: Apache-2.0
 *
 * The control socket, on which gpushared reports the tenants (message.h). For root, or the user who
 * runs this process.
 */
#ifndef GPUSHARE_SCHEDULER_CONTROL_H
#define GPUSHARE_SCHEDULER_CONTROL_H

#include "message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Listen at `path` unless another scheduler does; false with errno (EWOULDBLOCK: another does). */
bool control_listen(const char *path);

/* Remove the socket: no tenant and no client is left. */
void control_close(const char *path);

/* Whether all tenants have been named, from HELLO to COMPLETE; until then nothing is decided. */
bool control_is_complete(void);

/* Whether a client is connected, or none has connected yet. */
bool control_has_clients(void);

/* Whether `length` bytes are a valid message: 0, EINVAL, or EPROTO for another version's. */
int message_check(const struct schedule_message *message, size_t length);

#endif
