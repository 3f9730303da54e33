/* SPDX-License-Identifier: Apache-2.0 */
#include "init.h"

#include "cleanup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
	FD_FIRST = 3,
	FD_END = 1024, /* runtimes open few files before the pipe; callers pass some (LISTEN_FDS) */
	CHILDREN_MAX = 16384,
};

/* runc and crun keep the pipe in the folder of the container's state, which has its name. */
static bool waits_at_fifo(pid_t pid, const char *id)
{
	char path[64], target[PATH_MAX], end[PATH_MAX];
	const size_t length = (size_t)snprintf(end, sizeof(end), "/%s/exec.fifo", id);

	for (int fd = FD_FIRST; fd < FD_END; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
		ssize_t got = readlink(path, target, sizeof(target));
		if (got >= (ssize_t)length && got < (ssize_t)sizeof(target) &&
			memcmp(target + got - length, end, length) == 0)
			return true;
	}
	return false;
}

/* Its children, in decimal (proc(5), CONFIG_PROC_CHILDREN); false: not to be had. */
static bool read_children(char *to, size_t room)
{
	size_t have = 0;
	ssize_t got;
	CLEANUP_FD int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	while ((got = read(fd, to + have, room - 1 - have)) > 0)
		have += (size_t)got;
	to[have] = '\0';
	return got == 0 && have < room - 1;
}

pid_t init_find(const char *id)
{
	char children[CHILDREN_MAX], *rest = children;
	pid_t found = 0;

	if (!read_children(children, sizeof(children)))
		return -1;
	for (char *word; (word = strtok_r(rest, " ", &rest));) {
		pid_t pid = (pid_t)strtol(word, NULL, 10);
		if (pid <= 0 || !waits_at_fifo(pid, id))
			continue;
		if (found)
			return -1;
		found = pid;
	}
	return found;
}
