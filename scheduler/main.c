/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-scheduler --socket PATH [--time-scale N]: opens and closes the gates of all tenants of
 * this machine's cards, as gpushared requests over PATH (message.h).
 *
 * It outlives gpushared, so that shares are enforced while gpushared restarts. When it exits, it
 * leaves every gate as it is: the heartbeats grow old, and each tenant then throttles itself to its
 * share. Once it listens, it reports so on stdout and closes it.
 */
#include "control.h"
#include "cards.h"
#include "loop.h"
#include "priority.h"
#include "privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIME_SCALE_MAX 1000 /* as the simulator */

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct options {
	const char *socket;
	uint32_t time_scale;
};

static bool options_parse(struct options *options, char *const *argv)
{
	*options = (struct options){.time_scale = 1};
	for (argv++; argv[0] && argv[1]; argv += 2) {
		char *end = "";
		if (strcmp(argv[0], "--socket") == 0) {
			options->socket = argv[1];
		} else if (strcmp(argv[0], "--time-scale") == 0) {
			unsigned long time_scale = strtoul(argv[1], &end, 10);
			if (*end || time_scale < 1 || time_scale > TIME_SCALE_MAX)
				return false;
			options->time_scale = (uint32_t)time_scale;
		} else {
			return false;
		}
	}
	return !argv[0] && options->socket;
}

/* The parent process reads up to the end of it. */
static void report_ready(const char *priority)
{
	int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);

	printf("gpushare-scheduler: ready, pid %d, %s\n", (int)getpid(), priority);
	fflush(stdout);
	if (nowhere >= 0)
		dup2(nowhere, STDOUT_FILENO);
}

static int fail(const char *what)
{
	fprintf(stderr, "gpushare-scheduler: %s: %s\n", what,
		errno == EWOULDBLOCK ? "another gpushare-scheduler uses it. Stop that one first."
				     : strerror(errno));
	return EXIT_FAILED;
}

int main(int argc, char **argv)
{
	struct options options;

	(void)argc;
	if (!options_parse(&options, argv)) {
		fprintf(stderr, "usage: gpushare-scheduler --socket PATH [--time-scale 1..%d]\n",
			TIME_SCALE_MAX);
		return EXIT_USAGE;
	}
	signal(SIGPIPE, SIG_IGN);
	/* Detach from a terminal that gpushared may have been started from. */
	(void)setsid();
	cards_begin(options.time_scale);
	if (!loop_begin() || !control_listen(options.socket))
		return fail(options.socket);
	if (chdir("/") < 0)
		return fail("/");
	const char *priority = priority_raise();
	privileges_drop();
	report_ready(priority);
	if (!loop_run())
		return fail("waiting");
	control_close(options.socket);
	return 0;
}
