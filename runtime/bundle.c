/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_PATH */
#include "bundle.h"

#include "cleanup.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int bundle_open(const char *path)
{
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int bundle_path(int bundle, char *to, size_t room)
{
	char link[32];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", bundle);
	memset(to, 0, room);
	ssize_t length = readlink(link, to, room - 1);
	if (length < 0)
		return -1;
	if ((size_t)length == room - 1) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return 0;
}

/* Up to `room` bytes; fewer only at the end of the file. */
static ssize_t read_all(int fd, char *to, size_t room)
{
	size_t have = 0;
	while (have < room) {
		ssize_t got = read(fd, to + have, room - have);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		have += (size_t)got;
	}
	return (ssize_t)have;
}

enum bundle_read bundle_read_config(int bundle, const char *name, char **text, size_t *length)
{
	/* O_NONBLOCK: opening a pipe must not wait for its writer. */
	const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
	CLEANUP_FD int fd = openat(bundle, name, flags | O_NOFOLLOW);
	bool is_link = fd < 0 && errno == ELOOP;
	struct stat found;

	if (is_link)
		fd = openat(bundle, name, flags);
	if (fd < 0 || fstat(fd, &found) < 0)
		return BUNDLE_ABSENT;
	if (!S_ISREG(found.st_mode))
		return S_ISDIR(found.st_mode) ? BUNDLE_ABSENT : BUNDLE_IRREGULAR;
	if (found.st_size > (off_t)BUNDLE_CONFIG_MAX)
		return BUNDLE_TOO_LONG;
	/* One byte more than it was: a file that grows meanwhile is seen to be too long. */
	size_t room = (size_t)found.st_size + 1;
	CLEANUP_FREE char *bytes = malloc(room);
	ssize_t got = bytes ? read_all(fd, bytes, room) : -1;
	if (got < 0)
		return BUNDLE_ABSENT;
	if ((size_t)got == room)
		return BUNDLE_IRREGULAR;
	*text = bytes;
	bytes = NULL;
	*length = (size_t)got;
	return is_link ? BUNDLE_LINK : BUNDLE_READ;
}

int bundle_open_root(int bundle, const char *path)
{
	return openat(bundle, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}
