/* SPDX-License-Identifier: Apache-2.0
 *
 * Covers a file of a container as the launcher does, and prints why that failed. Fails if it is
 * somewhere else after it. */
#define _GNU_SOURCE
#include "driver_params.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void where(char *text, size_t room)
{
	char folder[PATH_MAX];
	struct stat namespace, root;

	if (!getcwd(folder, sizeof(folder)) || stat("/proc/self/ns/mnt", &namespace) < 0 ||
		stat("/", &root) < 0)
		exit(EXIT_FAILURE);
	snprintf(text, room, "%lu %lu %s", (unsigned long)namespace.st_ino,
		(unsigned long)root.st_ino, folder);
}

int main(int argc, char **argv)
{
	char before[PATH_MAX + 64], after[PATH_MAX + 64];

	if (argc != 4)
		return EXIT_FAILURE;
	int pidfd = (int)syscall(SYS_pidfd_open, atoi(argv[1]), 0);
	where(before, sizeof(before));
	const char *why = driver_params_cover(pidfd, argv[2], argv[3]);
	where(after, sizeof(after));
	fputs(why ? why : "", stdout);
	return strcmp(before, after) ? EXIT_FAILURE : EXIT_SUCCESS;
}
