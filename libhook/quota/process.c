/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t process_starttime(pid_t pid)
{
	char path[32] = "/proc/self/stat";
	char text[1024];

	if (pid != 0)
		snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return 0;
	text[length] = '\0';

	/* The name, field 2, may contain anything, including parentheses and spaces. */
	char *field = strrchr(text, ')');
	if (!field || strlen(field) < 3)
		return 0;
	field += 2; /* field 3, the state */
	char state = *field;
	unsigned long threads = 0;
	for (int number = 3; number < 22; number++) {
		field = strchr(field, ' ');
		if (!field)
			return 0;
		field++;
		if (number + 1 == 20)
			threads = strtoul(field, NULL, 10);
	}
	/* A process whose first thread has exited looks like a zombie while other threads run. */
	if ((state == 'Z' && threads <= 1) || state == 'X')
		return 0;
	return strtoull(field, NULL, 10);
}
