/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock that a gpushared holds as long as it lives, beside its control socket
 * (gpushare/daemon/__main__.py).
 */
#ifndef GPUSHARE_RUNTIME_LOCK_H
#define GPUSHARE_RUNTIME_LOCK_H

enum lock_state {
	LOCK_HELD,   /* a daemon lives, or the lock cannot be seen */
	LOCK_FREE,   /* a daemon has ended; if systemd has the socket, it is about to start the next
		      */
	LOCK_ABSENT, /* no daemon was started in this boot */
};

/* The lock of the daemon that serves `socket_path`. */
enum lock_state lock_look(const char *socket_path);

#endif
