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
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "gpushare_abi.h"
#include "quota/pages.h"

/* Above the numbers that programs expect to receive, and that shells let users choose. */
#define LOWEST_DESCRIPTOR 512
#define TRY_AGAIN_NS UINT64_C(100000000)

static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER;
static int descriptor = -1;
static struct stat
	identity; /* of the FIFO: the descriptor number may refer to another file by now */
static uint64_t tried_ns;

static bool descriptor_is_ours(void)
{
	struct stat status;

	return descriptor >= 0 && fstat(descriptor, &status) == 0 &&
	       status.st_dev == identity.st_dev && status.st_ino == identity.st_ino;
}

/* Opened for reading, too: writing to a pipe without a reader raises a signal. */
static int open_high(void)
{
	char path[sizeof(pages.directory) + 16];

	snprintf(path, sizeof(path), "%s/%s", pages.directory, GPUSHARE_WAKEUP_NAME);
	int low = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (low < 0)
		return -1;
	int high = fcntl(low, F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR);
	if (high < 0)
		return low;
	close(low);
	return high;
}

static bool descriptor_open(void)
{
	const uint64_t now_ns = clock_ns();

	if (descriptor_is_ours())
		return true;
	if (tried_ns != 0 && now_ns - tried_ns < TRY_AGAIN_NS)
		return false;
	tried_ns = now_ns;
	descriptor = open_high();
	if (descriptor < 0)
		return false;
	if (fstat(descriptor, &identity) == 0 && S_ISFIFO(identity.st_mode))
		return true;
	close(descriptor);
	descriptor = -1;
	return false;
}

void wakeup_send(void)
{
	int saved = errno, cancellation;

	pthread_setcancelstate(
		PTHREAD_CANCEL_DISABLE, &cancellation); /* otherwise the lock would stay locked */
	pthread_mutex_lock(&sending);
	if (descriptor_open()) {
		ssize_t written = write(descriptor, "", 1);
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
