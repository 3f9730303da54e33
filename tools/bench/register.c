/* SPDX-License-Identifier: Apache-2.0
 *
 * Times how long many processes that start at once take to have the driver:
 *
 *     register LIBRARY PROCESSES
 *
 * All are forked first and wait for the word; then each loads LIBRARY and calls cuInit. Prints the
 * milliseconds from the word to the last process that is ready, then lets them all end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "rounds.h"

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Until the other end is closed. */
static void wait_for_end(int fd)
{
	char byte;

	while (read(fd, &byte, 1) > 0 || errno == EINTR)
		;
}

static int have_driver(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	__typeof__(&cuInit) init = library ? (__typeof__(&cuInit))dlsym(library, "cuInit") : NULL;

	if (!init) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return init(0) == CUDA_SUCCESS ? 0 : 1;
}

static _Noreturn void child(const char *path, int word, int ready, int end)
{
	char failed;

	wait_for_end(word);
	failed = (char)have_driver(path);
	if (write(ready, &failed, 1) != 1)
		_exit(1);
	wait_for_end(end);
	_exit(0);
}

int main(int argc, char **argv)
{
	int word[2], ready[2], end[2];

	if (argc != 3) {
		fprintf(stderr, "usage: register LIBRARY PROCESSES\n");
		return 2;
	}
	int processes = atoi(argv[2]);
	if (pipe(word) != 0 || pipe(ready) != 0 || pipe(end) != 0)
		fail("pipe");
	for (int i = 0; i < processes; i++) {
		pid_t pid = fork();
		if (pid < 0)
			fail("fork");
		if (pid == 0) {
			close(word[1]);
			close(end[1]);
			child(argv[1], word[0], ready[1], end[0]);
		}
	}
	const double begun = now_ns();
	close(word[1]);
	for (int i = 0; i < processes; i++) {
		char failed = 1;
		if (read(ready[0], &failed, 1) != 1 || failed) {
			fprintf(stderr, "a process did not get the driver\n");
			return 1;
		}
	}
	printf("%.2f\n", (now_ns() - begun) / 1e6);
	close(end[1]);
	while (wait(NULL) > 0)
		;
	return 0;
}
