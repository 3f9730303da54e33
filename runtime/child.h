/* SPDX-License-Identifier: Apache-2.0
 *
 * The low-level runtime as a child, where the launcher has to act after it. To its caller the
 * launcher is the runtime: it forwards signals, stops when the child stops, and ends as it ended.
 */
#ifndef GPUSHARE_RUNTIME_CHILD_H
#define GPUSHARE_RUNTIME_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct child {
	pid_t pid;
	siginfo_t ended;	   /* waitid(2) */
	sigset_t mask;		   /* the caller's, as the next */
	struct sigaction on_child; /* SIGCHLD */
};

/* From now on, processes that outlive the child are this process's. False with errno: there is no
 * child. The child is killed when this process ends. */
bool child_start(struct child *child, int (*exec)(void *), void *data);

/* Have the signals that this process was started with, for a program that it becomes. */
void child_restore_signals(const struct child *child);

/* Wait until the child has ended, forwarding signals to it. The child is reaped. */
void child_wait(struct child *child);

/* Whether it exited with status 0. */
bool child_succeeded(const struct child *child);

/* End as the child did. */
_Noreturn void child_exit_alike(const struct child *child);

#endif
