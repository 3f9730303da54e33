/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-scheduler --socket PATH [--slow K]: opens and closes the gates of all tenants of this
 * machine's cards, as gpushared tells it over PATH (message.h).
 *
 * It outlives gpushared, so that shares hold while that is restarted. Ended, it leaves every gate
 * as it is: their heartbeats grow old, and each tenant then holds itself to its share. Once it
 * listens it says so on stdout, and closes that.
 */
#include "control.h"
#include "device.h"
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

#define SLOW_MAX 1000 /* as the simulator */

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct options {
	const char *socket;
	uint32_t slow;
};

static bool options_parse(struct options *options, char *const *argv)
{
	*options = (struct options){.slow = 1};
	for (argv++; argv[0] && argv[1]; argv += 2) {
		char *end = "";
		if (strcmp(argv[0], "--socket") == 0) {
			options->socket = argv[1];
		} else if (strcmp(argv[0], "--slow") == 0) {
			unsigned long slow = strtoul(argv[1], &end, 10);
			if (*end || slow < 1 || slow > SLOW_MAX)
				return false;
			options->slow = (uint32_t)slow;
		} else {
			return false;
		}
	}
	return !argv[0] && options->socket;
}

/* Who started us reads to the end of it. */
static void say_ready(const char *priority)
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
		errno == EWOULDBLOCK ? "another gpushare-scheduler serves it; end that first"
				     : strerror(errno));
	return EXIT_FAILED;
}

int main(int argc, char **argv)
{
	struct options options;

	(void)argc;
	if (!options_parse(&options, argv)) {
		fprintf(stderr, "usage: gpushare-scheduler --socket PATH [--slow 1..%d]\n",
			SLOW_MAX);
		return EXIT_USAGE;
	}
	signal(SIGPIPE, SIG_IGN);
	/* A terminal that gpushared was started from is nothing to us. */
	(void)setsid();
	devices_begin(options.slow);
	if (!loop_begin() || !control_listen(options.socket))
		return fail(options.socket);
	if (chdir("/") < 0)
		return fail("/");
	const char *priority = priority_raise();
	privileges_drop();
	say_ready(priority);
	if (!loop_run())
		return fail("waiting");
	control_close(options.socket);
	return 0;
}
