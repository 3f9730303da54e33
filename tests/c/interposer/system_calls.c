/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints how many system calls a thread makes in each of its first steps with a card, one "STEP
 * COUNT" a line, and "threads COUNT" for the threads that were started for it. The last step
 * allocates, frees and asks for memory at random among many live allocations:
 *
 *     system_calls LIBCUDA
 */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/ptrace.h>

static const char *const steps[] = {"before", "dlopen", "cuInit", "context", "allocation",
	"another", "load", "launch", "again", "many", "steady"};

#define STEPS (sizeof(steps) / sizeof(*steps))
#define MODULE ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry idle()\n{\nret;\n}\n"

/* A call that no program makes otherwise ends a step. */
static void step_done(void)
{
	syscall(SYS_close, -4711);
}

#define CALL(name, ...)                                                                            \
	do {                                                                                       \
		__typeof__(&name) function = (__typeof__(&name))dlsym(library, #name);             \
		int result = function ? (int)function(__VA_ARGS__) : -1;                           \
		if (result != 0) {                                                                 \
			fprintf(stderr, "%s: %d\n", #name, result);                                \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

#define LIVE 1024

static CUdeviceptr live[LIVE];

static void replace(void *library, unsigned which)
{
	size_t left, total;

	if (live[which])
		CALL(cuMemFree_v2, live[which]);
	CALL(cuMemAlloc_v2, &live[which], 512);
	CALL(cuMemGetInfo_v2, &left, &total);
}

static _Noreturn void use_a_card(const char *path)
{
	unsigned drawn = 1;
	CUdeviceptr pointer, other;
	CUfunction kernel;
	CUcontext context;
	CUmodule module;

	step_done();
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(1);
	}
	step_done();
	CALL(cuInit, 0);
	step_done();
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	step_done();
	CALL(cuMemAlloc_v2, &pointer, 1 << 20);
	step_done();
	CALL(cuMemAlloc_v2, &other, 1 << 20);
	step_done();
	CALL(cuModuleLoadData, &module, MODULE);
	CALL(cuModuleGetFunction, &kernel, module, "idle");
	step_done();
	CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	step_done();
	CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	step_done();
	for (unsigned i = 0; i < 2 * LIVE; i++) /* the second time tables have the room they need */
		replace(library, i % LIVE);
	step_done();
	for (unsigned i = 0; i < 10 * LIVE; i++) {
		drawn = drawn * 1664525 + 1013904223;
		replace(library, drawn >> 22);
	}
	step_done();
	_exit(0);
}

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

int main(int count, char **argv)
{
	const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
	unsigned counts[STEPS] = {0}, threads = 0;
	size_t step = 0;
	int status;

	(void)count;
	pid_t child = fork();
	if (child == 0) {
		raise(SIGSTOP);
		use_a_card(argv[1]);
	}
	if (waitpid(child, &status, WUNTRACED) != child ||
		ptrace(PTRACE_SEIZE, child, NULL, options) != 0)
		fail("ptrace");
	kill(child, SIGCONT);
	for (;;) {
		int signal = 0;
		pid_t thread = waitpid(-1, &status, __WALL);

		if (thread < 0)
			fail("waitpid");
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == child)
				break;
			continue;
		}
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			struct ptrace_syscall_info info;

			if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) > 0 &&
				info.op == PTRACE_SYSCALL_INFO_ENTRY && thread == child &&
				step < STEPS) {
				if (info.entry.nr == SYS_close && (int)info.entry.args[0] == -4711)
					step++;
				else
					counts[step]++;
			}
		} else if (status >> 16 == PTRACE_EVENT_CLONE) {
			threads += thread == child;
		} else if (status >> 16 == 0) {
			signal = WSTOPSIG(status);
		}
		if (ptrace(PTRACE_SYSCALL, thread, NULL, signal) != 0 && errno != ESRCH)
			fail("ptrace");
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return 1;
	for (step = 1; step < STEPS; step++)
		printf("%s %u\n", steps[step], counts[step]);
	printf("threads %u\n", threads);
	return 0;
}
