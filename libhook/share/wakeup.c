/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `sending` is a leaf.
 */
#include "wakeup.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "clock.h"
#include "gpushare_abi.h"
#include "quota/descriptor.h"
#include "quota/pages.h"

#define TRY_AGAIN_NS UINT64_C(100000000)

static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER;
static struct kept_descriptor fifo = {.number = -1};
static uint64_t tried_ns;

/* Opened for reading, too: writing to a pipe without a reader raises a signal. */
static int open_fifo(void)
{
	char path[sizeof(pages.directory) + 16];

	snprintf(path, sizeof(path), "%s/%s", pages.directory, GPUSHARE_WAKEUP_NAME);
	return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

static bool descriptor_open(void)
{
	const uint64_t now_ns = clock_ns();

	if (descriptor_is_ours(&fifo))
		return true;
	if (tried_ns != 0 && now_ns - tried_ns < TRY_AGAIN_NS)
		return false;
	tried_ns = now_ns;
	if (descriptor_keep(&fifo, open_fifo()) && S_ISFIFO(fifo.identity.st_mode))
		return true;
	descriptor_close(&fifo);
	return false;
}

void wakeup_send(void)
{
	int saved = errno, cancellation;

	pthread_setcancelstate(
		PTHREAD_CANCEL_DISABLE, &cancellation); /* otherwise the lock would stay locked */
	pthread_mutex_lock(&sending);
	if (descriptor_open()) {
		ssize_t written = write(fifo.number, "", 1);
		(void)written; /* if the FIFO is full, its reader will look anyway */
	}
	pthread_mutex_unlock(&sending);
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}

void wakeup_before_fork(void)
{
	pthread_mutex_lock(&sending);
}

/* A forked child can use the same descriptor. */
void wakeup_after_fork(void)
{
	pthread_mutex_unlock(&sending);
}
