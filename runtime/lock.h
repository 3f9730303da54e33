/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock that a gpushared holds as long as it lives, beside its control socket
 * (gpushare/daemon/startup.py).
 */
#ifndef GPUSHARE_RUNTIME_LOCK_H
#define GPUSHARE_RUNTIME_LOCK_H

#include <stdbool.h>

/* Whether no daemon lives that serves `socket_path`: who holds the socket then, systemd, is about
 * to start one. False where that cannot be seen. */
bool lock_is_free(const char *socket_path);

#endif
