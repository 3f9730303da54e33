/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* SYS_pidfd_open */
#include "binding.h"

#include "child.h"
#include "cleanup.h"
#include "client.h"
#include "driver_params.h"
#include "init.h"
#include "log.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { EXIT_UNBOUND = 1 };

/* How the low-level runtime is executed, for the child. */
struct start {
	const struct config *config;
	char **argv;
	int (*exec)(const struct config *, char **);
};

static int start_exec(void *data)
{
	const struct start *start = data;
	return start->exec(start->config, start->argv);
}

static void wait_for(pid_t pid)
{
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static void kill_init(pid_t init)
{
	if (init <= 0)
		return;
	kill(init, SIGKILL);
	wait_for(init);
}

static int quiet_exec(const struct start *start, const struct child *before)
{
	int null = open("/dev/null", O_RDWR);

	for (int fd = STDIN_FILENO; null >= 0 && fd <= STDERR_FILENO; fd++)
		dup2(null, fd);
	child_restore_signals(before);
	return start->exec(start->config, start->argv);
}

/* Have the runtime forget the container, with the flags that came before the verb: they say where
 * its state is. */
static void delete_container(
	const struct args *args, const struct start *create, const struct child *before)
{
	static char verb[] = "delete", force[] = "--force";
	size_t words = 0;

	while (create->argv[words] != args->verb)
		words++;
	char *argv[words + 4];
	memcpy(argv, create->argv, words * sizeof(*argv));
	argv[words] = verb;
	argv[words + 1] = force;
	memcpy(&argv[words + 2], &args->id, sizeof(*argv));
	argv[words + 3] = NULL;
	const struct start start = {create->config, argv, create->exec};
	pid_t pid = fork();
	if (pid == 0)
		_exit(quiet_exec(&start, before));
	if (pid > 0)
		wait_for(pid);
}

/* Tell gpushared that `init` is the container's, as `created` answered; false and a reason. */
static bool bind_init(const struct args *args, const struct config *config,
	const struct reply *created, pid_t init, struct reply *reply)
{
	struct request request;
	const char *uncovered = NULL;
	CLEANUP_FD int pidfd = (int)syscall(SYS_pidfd_open, init, 0);

	if (pidfd < 0) {
		snprintf(reply->message, sizeof(reply->message), "pidfd_open: %s", strerror(errno));
		return false;
	}
	if (created->covers[0])
		uncovered = driver_params_cover(pidfd, created->copy, created->covers);
	request_begin(&request, "bind");
	request_string(&request, "key", created->key);
	request_string(&request, "id", args->id);
	if (uncovered)
		request_string(&request, "uncovered", uncovered);
	request_end(&request); /* it fits: an id is the name of a folder */
	return client_call(config->socket, &request, &pidfd, 1,
		       (struct patience){CLIENT_START_MS, CLIENT_FINAL_MS}, reply) == CLIENT_OK;
}

_Noreturn void binding_create(const struct args *args, const struct config *config,
	const struct reply *created, char **argv, int (*exec)(const struct config *, char **))
{
	const struct start start = {config, argv, exec};
	struct child child = {0};
	static struct reply reply;

	if (!child_start(&child, start_exec, (void *)&start)) {
		log_error("cannot start %s: %s", config->runtime, strerror(errno));
		_exit(EXIT_UNBOUND);
	}
	child_wait(&child);
	pid_t init = init_find(args->id);
	if (!child_succeeded(&child)) {
		/* A runtime that was killed may leave its init behind, which nothing binds now. */
		kill_init(init);
		child_exit_alike(&child);
	}
	if (init > 0 && bind_init(args, config, created, init, &reply))
		child_exit_alike(&child);
	if (init <= 0)
		snprintf(reply.message, sizeof(reply.message),
			"%s created no process that waits to be started. If it is neither runc nor "
			"crun, set \"bind: hook\" in gpushare.yaml",
			config->runtime);
	kill_init(init);
	delete_container(args, &start, &child);
	log_error("this container was not bound to its GPU: %s", reply.message);
	_exit(EXIT_UNBOUND);
}
