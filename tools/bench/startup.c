/* SPDX-License-Identifier: Apache-2.0
 *
 * Times how long a process takes to have the driver, through the filter library and without it:
 *
 *     startup FILTER DRIVER ROUNDS THREADS
 *
 * Every round forks one process for each library, in alternating order. Its file table has room for
 * 64 descriptors, the least there is, as a container's may have. It starts so many threads that
 * wait, loads the library and calls cuInit. Prints, for dlopen and for both calls together, the
 * median of each library and the median of the rounds' differences, in microseconds: "BARE
 * FILTERED DIFFERENCE", twice.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "rounds.h"

struct times {
	double open_us, all_us;
};

static void *wait_for_end(void *unused)
{
	pause();
	return unused;
}

static _Noreturn void child(const char *path, unsigned long threads, int result)
{
	struct times times;
	pthread_t thread;

	if (close_range(64, ~0U, CLOSE_RANGE_UNSHARE) != 0)
		_exit(1);
	for (unsigned long i = 0; i < threads; i++)
		if (pthread_create(&thread, NULL, wait_for_end, NULL) != 0)
			_exit(1);
	const double begun = now_ns();
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const double opened = now_ns();
	__typeof__(&cuInit) init = library ? (__typeof__(&cuInit))dlsym(library, "cuInit") : NULL;

	if (!init || init(0) != CUDA_SUCCESS) {
		fprintf(stderr, "%s: %s\n", path, init ? "cuInit failed" : dlerror());
		_exit(1);
	}
	times = (struct times){(opened - begun) / 1e3, (now_ns() - begun) / 1e3};
	_exit(write(result, &times, sizeof(times)) == sizeof(times) ? 0 : 1);
}

static struct times measure(const char *path, unsigned long threads)
{
	struct times times;
	int result[2];

	if (pipe(result) != 0) {
		perror("pipe");
		exit(1);
	}
	pid_t pid = fork();
	if (pid == 0)
		child(path, threads, result[1]);
	close(result[1]);
	if (read(result[0], &times, sizeof(times)) != sizeof(times))
		exit(1);
	close(result[0]);
	waitpid(pid, NULL, 0);
	return times;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: startup FILTER DRIVER ROUNDS THREADS\n");
		return 2;
	}
	const size_t rounds = strtoul(argv[3], NULL, 10);
	const unsigned long threads = strtoul(argv[4], NULL, 10);
	double *values[2][2]; /* by library and part */

	for (int i = 0; i < 4; i++)
		values[i / 2][i % 2] = calloc(rounds, sizeof(double));
	for (int warm = 0; warm < 4; warm++)
		measure(argv[1 + warm % 2], threads);
	for (size_t round = 0; round < rounds; round++)
		for (size_t turn = 0; turn < 2; turn++) {
			const size_t library = (round + turn) % 2;
			const struct times times = measure(argv[1 + library], threads);
			values[library][0][round] = times.open_us;
			values[library][1][round] = times.all_us;
		}
	for (int part = 0; part < 2; part++)
		report(values[1][part], values[0][part], rounds);
	return 0;
}
