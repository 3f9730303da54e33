/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `ringing` is a leaf.
 */
#include "bell.h"

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

/* Above the numbers that programs expect to be given, and that shells let users name. */
#define LOWEST_DESCRIPTOR 512
#define TRY_AGAIN_NS UINT64_C(100000000)

static pthread_mutex_t ringing = PTHREAD_MUTEX_INITIALIZER;
static int descriptor = -1;
static struct stat identity; /* of the FIFO: its number may be another file's by now */
static uint64_t tried_ns;

static bool descriptor_is_ours(void)
{
	struct stat status;

	return descriptor >= 0 && fstat(descriptor, &status) == 0 &&
	       status.st_dev == identity.st_dev && status.st_ino == identity.st_ino;
}

/* For reading, too: then a write never meets a pipe without a reader, which is a signal. */
static int open_high(void)
{
	char path[sizeof(pages.directory) + 16];

	snprintf(path, sizeof(path), "%s/%s", pages.directory, GPUSHARE_BELL_NAME);
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

void bell_ring(void)
{
	int saved = errno, cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation); /* the lock would stay */
	pthread_mutex_lock(&ringing);
	if (descriptor_open()) {
		ssize_t written = write(descriptor, "", 1);
		(void)written; /* full: whoever reads it will look */
	}
	pthread_mutex_unlock(&ringing);
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}

void bell_before_fork(void)
{
	pthread_mutex_lock(&ringing);
}

/* The descriptor serves a child as well: a byte is a byte. */
void bell_after_fork(void)
{
	pthread_mutex_unlock(&ringing);
}
