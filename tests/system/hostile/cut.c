/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends a process as the out-of-memory killer does, at a step that is chosen by its number: as it
 * enters its Nth system call, those of all its threads counted, those of its children not.
 *
 *	NAME ARGUMENT...	beside a file NAME.cut that holds N and the path of a program:
 *				runs that, for whoever thinks to start it
 *	cut [--keep FROM INTO] --pid PID N
 *				a process that runs already; "ready" on stdout when it is watched
 *
 * With --pid only those calls are counted that put something where others see it, or take it away
 * (but for what goes to stderr); with --keep FROM INTO the files beneath FROM are copied to INTO/N
 * at each step that is counted: what a kill there would leave.
 *
 * At the end "cut" or "whole COUNT" goes to NAME.said, or to stdout; N 0 only counts. With --pid
 * SIGTERM ends the watching. The exit status is the program's; a program that was cut takes us with
 * it by the same signal, so that its parent sees what it would have seen.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC)

static volatile sig_atomic_t told_to_stop;

static bool only_writes;
/* What --keep says. */
static const char *keep_from, *keep_into;

static const long writes[] = {
	SYS_write,
	SYS_pwrite64,
	SYS_writev,
	SYS_pwritev,
	SYS_sendto,
	SYS_sendmsg,
	SYS_renameat,
	SYS_renameat2,
	SYS_unlinkat,
	SYS_mkdirat,
	SYS_linkat,
	SYS_symlinkat,
	SYS_ftruncate,
	SYS_fallocate,
	SYS_mount,
	SYS_umount2,
#ifdef SYS_rename
	SYS_rename,
	SYS_unlink,
	SYS_mkdir,
	SYS_rmdir,
	SYS_link,
	SYS_symlink,
#endif
};

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

static bool is_write(const struct __ptrace_syscall_info *call)
{
	long number = (long)call->entry.nr;
	if (number == SYS_openat)
		return call->entry.args[2] & (O_CREAT | O_TRUNC);
	if (number == SYS_write && call->entry.args[0] == STDERR_FILENO)
		return false;
	for (size_t i = 0; i < sizeof(writes) / sizeof(*writes); i++)
		if (writes[i] == number)
			return true;
	return false;
}

/* Whether the thread enters a call that is counted. */
static bool enters(pid_t thread)
{
	struct __ptrace_syscall_info call = {0};
	long size = ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof(call), &call);
	if (size <= 0 || call.op != PTRACE_SYSCALL_INFO_ENTRY)
		return false;
	return !only_writes || is_write(&call);
}

static void copy_file(int from, int into, const char *name)
{
	char bytes[1 << 16];
	ssize_t size;
	int source = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int copy = openat(into, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (source < 0 || copy < 0)
		die(name);
	while ((size = read(source, bytes, sizeof(bytes))) > 0)
		if (write(copy, bytes, (size_t)size) != size)
			die("write");
	close(source);
	close(copy);
}

static int open_folder(int beneath, const char *name)
{
	int folder = openat(beneath, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		die(name);
	return folder;
}

/* The files of the folder and of those in it, but for the tenants' own. */
static void copy_folder(int from, int into)
{
	DIR *folder = fdopendir(from);
	if (!folder)
		die("fdopendir");
	for (struct dirent *entry; (entry = readdir(folder));) {
		if (entry->d_type == DT_REG)
			copy_file(from, into, entry->d_name);
		if (entry->d_type != DT_DIR || entry->d_name[0] == '.' ||
			!strcmp(entry->d_name, "tenants"))
			continue;
		if (mkdirat(into, entry->d_name, 0700) < 0)
			die(entry->d_name);
		int beneath = open_folder(into, entry->d_name);
		copy_folder(open_folder(from, entry->d_name), beneath);
		close(beneath);
	}
	closedir(folder);
}

/* What waitpid said of threads while we looked at another, for later. */
static struct {
	pid_t thread;
	int status;
} said[256];
static size_t said_count;

/* A kill ends all threads at once: what the others do meanwhile would never have been there. */
static void stop_others(pid_t process, pid_t thread)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/task", process);
	DIR *tasks = opendir(path);
	if (!tasks)
		die(path);
	for (struct dirent *entry; (entry = readdir(tasks));) {
		pid_t other = atoi(entry->d_name);
		bool is_known = other <= 0 || other == thread;
		for (size_t i = 0; i < said_count && !is_known; i++)
			is_known = said[i].thread == other;
		if (is_known || said_count == sizeof(said) / sizeof(*said) ||
			ptrace(PTRACE_INTERRUPT, other, NULL, NULL) < 0)
			continue;
		if (waitpid(other, &said[said_count].status, __WALL) == other)
			said[said_count++].thread = other;
	}
	closedir(tasks);
}

/* What there is now, as INTO/NUMBER. */
static void keep(pid_t process, pid_t thread, long number)
{
	char path[PATH_MAX];
	if (!keep_from)
		return;
	stop_others(process, thread);
	snprintf(path, sizeof(path), "%s/%ld", keep_into, number);
	if (mkdir(path, 0700) < 0)
		die(path);
	int into = open_folder(AT_FDCWD, path);
	copy_folder(open_folder(AT_FDCWD, keep_from), into);
	close(into);
}

static pid_t next_said(int *status)
{
	said_count--;
	*status = said[said_count].status;
	return said[said_count].thread;
}

/* The status of `process` as waitpid has it; `*count` are its calls, `*was_cut` how it ended. */
static int follow(pid_t process, long cut_at, long *count, bool *was_cut)
{
	/* Whoever tells us to stop may do so between two calls of waitpid: there is always a next
	 * one, for a daemon looks at things again and again. */
	while (!told_to_stop) {
		int status;
		bool is_said = said_count > 0;
		pid_t thread = is_said ? next_said(&status) : waitpid(-1, &status, __WALL);
		if (!is_said && thread < 0) {
			if (errno == EINTR)
				continue;
			die("waitpid");
		}
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == process)
				return status;
			continue;
		}
		bool is_call = WSTOPSIG(status) == (SIGTRAP | 0x80), is_event = status >> 16;
		if (is_call && enters(thread)) {
			keep(process, thread, ++*count);
			if (*count == cut_at) {
				*was_cut = true;
				kill(process, SIGKILL);
			}
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
	static char self[PATH_MAX], program[PATH_MAX], where[PATH_MAX + 8];
	long number = 0, count = 0;
	bool was_cut = false;
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (length > 0 && read_file(self, &number, program)) {
		snprintf(where, sizeof(where), "%s.said", self);
		char *name = argv[0];
		argv[0] = program;
		pid_t child = start(argv);
		argv[0] = name;
		int status = follow(child, number, &count, &was_cut);
		say(where, was_cut, count);
		return end_as(status);
	}
	if (argc > 3 && !strcmp(argv[1], "--keep")) {
		keep_from = argv[2];
		keep_into = argv[3];
		argc -= 3, argv += 3;
	}
	if (argc != 4 || strcmp(argv[1], "--pid") != 0)
		return 125;
	struct sigaction action = {.sa_handler = stop};
	sigaction(SIGTERM, &action, NULL);
	pid_t process = atoi(argv[2]);
	only_writes = true;
	seize(process);
	puts("ready");
	fflush(stdout);
	follow(process, atol(argv[3]), &count, &was_cut);
	say(NULL, was_cut, count);
	return 0;
}
