/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sigwaitinfo, SI_KERNEL */
#include "child.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whoever passes sockets to a service names the process that they are for (sd_listen_fds(3)). */
static void environment_rename(pid_t from)
{
	static char renamed[32];
	char expected[32];

	snprintf(expected, sizeof(expected), "LISTEN_PID=%d", (int)from);
	snprintf(renamed, sizeof(renamed), "LISTEN_PID=%d", (int)getpid());
	for (char **entry = environ; *entry; entry++)
		if (strcmp(*entry, expected) == 0)
			*entry = renamed;
}

void child_restore_signals(const struct child *child)
{
	sigaction(SIGCHLD, &child->on_child, NULL);
	sigprocmask(SIG_SETMASK, &child->mask, NULL);
}

bool child_start(struct child *child, int (*exec)(void *), void *data)
{
	const pid_t self = getpid();
	const struct sigaction standard = {.sa_handler = SIG_DFL};
	sigset_t all;

	/* A caller that ignores SIGCHLD would have the kernel reap the container's init. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &child->mask);
	sigaction(SIGCHLD, &standard, &child->on_child);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return false;
	child->pid = fork();
	if (child->pid != 0)
		return child->pid > 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != self) /* it ended before that */
		_exit(EXIT_FAILURE);
	environment_rename(self);
	child_restore_signals(child);
	_exit(exec(data));
}

/* Whether the child has it already: the terminal signals the whole foreground process group. */
static bool is_of_the_group(const siginfo_t *signal)
{
	switch (signal->si_signo) {
	case SIGINT:
	case SIGQUIT:
	case SIGTSTP:
	case SIGTTIN:
	case SIGTTOU:
	case SIGWINCH:
		return signal->si_code == SI_KERNEL;
	default:
		return false;
	}
}

/* Whether the child has ended. A job-control shell must see us stop when the child stops. */
static bool has_ended(const struct child *child)
{
	siginfo_t found = {0};

	while (waitid(P_PID, (id_t)child->pid, &found, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) < 0)
		if (errno != EINTR)
			return true;
	if (found.si_pid == 0)
		return false;
	if (found.si_code != CLD_STOPPED)
		return true;
	waitid(P_PID, (id_t)child->pid, &found, WSTOPPED | WNOHANG);
	raise(SIGSTOP);
	return false;
}

void child_wait(struct child *child)
{
	sigset_t all;
	siginfo_t signal;

	sigfillset(&all);
	for (;;) {
		if (sigwaitinfo(&all, &signal) < 0)
			continue;
		if (signal.si_signo != SIGCHLD) {
			/* Not reaped, so the number is the child's still. */
			if (!is_of_the_group(&signal))
				kill(child->pid, signal.si_signo);
		} else if (has_ended(child)) {
			break;
		}
	}
	while (waitid(P_PID, (id_t)child->pid, &child->ended, WEXITED) < 0 && errno == EINTR)
		;
}

bool child_succeeded(const struct child *child)
{
	return child->ended.si_code == CLD_EXITED && child->ended.si_status == 0;
}

_Noreturn void child_exit_alike(const struct child *child)
{
	const struct rlimit no_core = {0, 0};
	const struct sigaction standard = {.sa_handler = SIG_DFL};
	const int status = child->ended.si_status;
	sigset_t only;

	if (child->ended.si_code == CLD_EXITED)
		_exit(status);
	setrlimit(RLIMIT_CORE, &no_core); /* the child has left one, if it was to */
	sigaction(status, &standard, NULL);
	sigemptyset(&only);
	sigaddset(&only, status);
	kill(getpid(), status);
	sigprocmask(SIG_UNBLOCK, &only, NULL);
	_exit(128 + status);
}
