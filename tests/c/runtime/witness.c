/* SPDX-License-Identifier: Apache-2.0
 *
 * A low-level runtime that only says how it was called: argv, environment, working directory and
 * open descriptors with their flags, one "name=value" per NUL-ended line on stdout. Exit status 42.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* The tests' own process may have some hundred files open when it passes one on. */
#define FDS_MAX 4096

extern char **environ;

static void print_all(const char *name, char *const *values)
{
	for (; *values; values++)
		printf("%s=%s%c", name, *values, '\0');
}

int main(int argc, char **argv)
{
	char cwd[4096];

	(void)argc;
	print_all("argv", argv);
	print_all("env", environ);
	printf("cwd=%s%c", getcwd(cwd, sizeof(cwd)), '\0');
	for (int fd = 0; fd < FDS_MAX; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			printf("fd=%d %d%c", fd, fcntl(fd, F_GETFL), '\0');
	return 42;
}
