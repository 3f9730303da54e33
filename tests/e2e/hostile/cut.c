/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends a process as the out-of-memory killer does, at a step that is chosen by its number: as it
 * enters its Nth system call, those of all its threads counted, those of its children not.
 *
 *	NAME ARGUMENT...	beside a file NAME.cut that holds N and the path of a program:
 *				runs that, for whoever thinks to start it
 *	cut --pid PID N		a process that runs already; "ready" on stdout when it is watched
 *
 * At the end "cut" or "whole COUNT" goes to NAME.said, or to stdout; N 0 only counts. With --pid
 * SIGTERM ends the watching. The exit status is the program's; a program that was cut takes us with
 * it by the same signal, so that its parent sees what it would have seen.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC)

static volatile sig_atomic_t told_to_stop;

static void die(const char *what)
{
	fprintf(stderr, "cut: %s: %s\n", what, strerror(errno));
	exit(125);
}

static void go_on(pid_t thread, int signal)
{
	/* It may have been killed meanwhile: waitpid tells. */
	(void)ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(long)signal);
}

static void stop(int number)
{
	(void)number;
	told_to_stop = 1;
}

/* Every thread stops and is let go: what they do from now on is counted. */
static void seize(pid_t process)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/task", process);
	DIR *tasks = opendir(path);
	if (!tasks)
		die(path);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		pid_t thread = atoi(entry->d_name);
		if (thread <= 0)
			continue;
		if (ptrace(PTRACE_SEIZE, thread, NULL, (void *)OPTIONS) < 0 ||
			ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) < 0)
			die("PTRACE_SEIZE");
	}
	closedir(tasks);
}

static pid_t start(char **argv)
{
	pid_t child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		raise(SIGSTOP);
		execv(argv[0], argv);
		die(argv[0]);
	}
	if (waitpid(child, NULL, WUNTRACED) != child)
		die("waitpid");
	if (ptrace(PTRACE_SEIZE, child, NULL, (void *)OPTIONS) < 0)
		die("PTRACE_SEIZE");
	kill(child, SIGCONT);
	return child;
}

static bool enters(pid_t thread)
{
	struct __ptrace_syscall_info call = {0};
	long size = ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof(call), &call);
	return size > 0 && call.op == PTRACE_SYSCALL_INFO_ENTRY;
}

/* The status of `process` as waitpid has it; `*count` are its calls, `*was_cut` how it ended. */
static int follow(pid_t process, long cut_at, long *count, bool *was_cut)
{
	/* Whoever tells us to stop may do so between two calls of waitpid: there is always a next
	 * one, for a daemon looks at things again and again. */
	while (!told_to_stop) {
		int status;
		pid_t thread = waitpid(-1, &status, __WALL);
		if (thread < 0 && errno == EINTR)
			continue;
		if (thread < 0)
			die("waitpid");
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == process)
				return status;
			continue;
		}
		bool is_call = WSTOPSIG(status) == (SIGTRAP | 0x80), is_event = status >> 16;
		if (is_call && enters(thread) && ++*count == cut_at) {
			*was_cut = true;
			kill(process, SIGKILL);
		}
		go_on(thread, is_call || is_event ? 0 : WSTOPSIG(status));
	}
	return 0;
}

static void say(const char *where, bool was_cut, long count)
{
	FILE *to = where ? fopen(where, "w") : stdout;
	if (!to)
		die(where);
	if (was_cut)
		fputs("cut\n", to);
	else
		fprintf(to, "whole %ld\n", count);
	if (to != stdout)
		fclose(to);
	else
		fflush(to);
}

/* The number and the program of the file NAME.cut, where there is one. */
static bool read_file(const char *name, long *number, char *program)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s.cut", name);
	FILE *file = fopen(path, "r");
	if (!file)
		return false;
	bool read = fscanf(file, "%ld %4095s", number, program) == 2;
	fclose(file);
	return read;
}

static int end_as(int status)
{
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	static char self[PATH_MAX], program[PATH_MAX], said[PATH_MAX + 8];
	long number = 0, count = 0;
	bool was_cut = false;
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (length > 0 && read_file(self, &number, program)) {
		snprintf(said, sizeof(said), "%s.said", self);
		char *name = argv[0];
		argv[0] = program;
		pid_t child = start(argv);
		argv[0] = name;
		int status = follow(child, number, &count, &was_cut);
		say(said, was_cut, count);
		return end_as(status);
	}
	if (argc != 4 || strcmp(argv[1], "--pid") != 0)
		return 125;
	struct sigaction action = {.sa_handler = stop};
	sigaction(SIGTERM, &action, NULL);
	pid_t process = atoi(argv[2]);
	seize(process);
	puts("ready");
	fflush(stdout);
	follow(process, atol(argv[3]), &count, &was_cut);
	say(NULL, was_cut, count);
	return 0;
}
