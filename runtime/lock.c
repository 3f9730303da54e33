/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* F_OFD_GETLK */
#include "lock.h"

#include "cleanup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum lock_state lock_look(const char *socket_path)
{
	char path[PATH_MAX];
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	const char *name = strrchr(socket_path, '/');
	int folder = name ? (int)(name - socket_path) : 0;

	if (!name || snprintf(path, sizeof(path), "%.*s/lock", folder, socket_path) >= PATH_MAX)
		return LOCK_HELD;
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? LOCK_ABSENT : LOCK_HELD;
	/* To try the lock by taking it could keep a daemon that starts just now from it. */
	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK ? LOCK_FREE : LOCK_HELD;
}
