/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-scheduler --socket PATH [--time-scale N] [--switch-us N]: opens and closes the gates of
 * all tenants of this machine's cards, as gpushared requests over PATH (message.h).
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
#define SWITCH_US 160	    /* of a card: an H100 and an H200 take 150 to 170 us */
#define SWITCH_US_MAX 10000

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct options {
	const char *socket;
	uint32_t time_scale, switch_us;
};

/* Whether `text` is a number from `least` to `most`. */
static bool number_parse(
	const char *text, unsigned long least, unsigned long most, uint32_t *number)
{
	char *end = "";
	const unsigned long parsed = strtoul(text, &end, 10);

	*number = (uint32_t)parsed;
	return !*end && parsed >= least && parsed <= most;
}

static bool options_parse(struct options *options, char *const *argv)
{
	*options = (struct options){.time_scale = 1, .switch_us = SWITCH_US};
	for (argv++; argv[0] && argv[1]; argv += 2) {
		if (strcmp(argv[0], "--socket") == 0) {
			options->socket = argv[1];
		} else if (strcmp(argv[0], "--time-scale") == 0) {
			if (!number_parse(argv[1], 1, TIME_SCALE_MAX, &options->time_scale))
				return false;
		} else if (strcmp(argv[0], "--switch-us") == 0) {
			if (!number_parse(argv[1], 0, SWITCH_US_MAX, &options->switch_us))
				return false;
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
		fprintf(stderr,
			"usage: gpushare-scheduler --socket PATH [--time-scale 1..%d] "
			"[--switch-us 0..%d]\n",
			TIME_SCALE_MAX, SWITCH_US_MAX);
		return EXIT_USAGE;
	}
	signal(SIGPIPE, SIG_IGN);
	/* Detach from a terminal that gpushared may have been started from. */
	(void)setsid();
	cards_begin(options.time_scale, options.switch_us * 1000);
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
