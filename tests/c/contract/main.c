/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of the driver, case by case:
 *
 *     contract NAME     exit status 0: it holds, 77: the machine lacks what it needs, else not
 *     contract          all of them, each in a process of its own; it names those that do not hold
 */
#include "contract.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SIMULATED
void device_file_make(void); /* tests/c/simulator/device_file.c */
#endif

#ifdef __SANITIZE_THREAD__
/* A race ends the process that has it, so that the case fails that started it. */
const char *__tsan_default_options(void); /* NOLINT(bugprone-reserved-identifier) */
const char *__tsan_default_options(void)  /* NOLINT(bugprone-reserved-identifier) */
{
	return "halt_on_error=1:atexit_sleep_ms=0";
}
#endif

enum { TIMEOUT_SECONDS = 600 };

static const struct contract_case {
	const char *name;
	void (*body)(void);
	int runs, cards, cuda_version;
} cases[] = {
#define CASE(name, runs, cards, cuda_version, ...) {#name, name, runs, cards, cuda_version},
#include "cases.inc"
};

#define CASES (sizeof(cases) / sizeof(*cases))

/* Whether the machine has what a case needs: asked in a process of its own, because a case may
 * start others before it initialises the driver. */
static bool has_what_it_needs(const struct contract_case *one)
{
	int count = 0, version = 0, status = 0;
	pid_t child = fork();

	if (child == 0) {
		OK(cuInit(0));
		OK(cuDeviceGetCount(&count));
		OK(cuDriverGetVersion(&version));
		_exit(count >= one->cards && version >= one->cuda_version ? 0 : 77);
	}
	EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
	return WEXITSTATUS(status) == 0;
}

_Noreturn static void run(const struct contract_case *one)
{
	alarm(TIMEOUT_SECONDS);
	if (!has_what_it_needs(one)) {
		fprintf(stderr, "%d cards and CUDA %d.%d are needed\n", one->cards,
			one->cuda_version / 1000, one->cuda_version % 1000 / 10);
		exit(77);
	}
	for (int i = 1; i <= one->runs; i++) {
		settled = i == one->runs;
		one->body();
	}
	_exit(0); /* what the case has left goes with its process */
}

static bool holds(const struct contract_case *one)
{
	int status;
	pid_t child = fork();

	if (child == 0)
		run(one);
	EQUAL(waitpid(child, &status, 0), child);
	dead_are_seen(); /* what the case has left is not the next one's */
	if (status != 0)
		fprintf(stderr, "%s does not hold\n", one->name);
	return status == 0;
}

int main(int argc, char **argv)
{
	bool all = true;

#ifdef SIMULATED
	device_file_make();
#endif
	for (size_t i = 0; i < CASES; i++) {
		if (argc < 2) {
			all = holds(&cases[i]) && all;
		} else if (strcmp(cases[i].name, argv[1]) == 0) {
			run(&cases[i]);
		}
	}
	return argc > 1 || !all;
}
