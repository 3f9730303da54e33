/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include "wakeup.h"

#include "cleanup.h"
#include "clock.h"
#include "gpushare_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* A sample takes some microseconds of the scheduler that all tenants share. A process that launches
 * small units of work one after another wakes it twice for each; this many wake-ups suffice to
 * enforce any share exactly. */
#define WAKEUPS 128
#define REFILL_NS MS /* for one more */

int wakeup_open(struct wakeup *wakeup, int directory, uint64_t now_ns)
{
	struct stat found;
	/* For writing, too: without a writer, a FIFO is always ready and reports its end. */
	CLEANUP_FD int fd = openat(
		directory, GPUSHARE_WAKEUP_NAME, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &found) < 0)
		return errno;
	if (!S_ISFIFO(found.st_mode))
		return ENXIO;
	/* One page, which one read empties. If that is refused, a read leaves a rest, and follows
	 * again. */
	(void)fcntl(fd, F_SETPIPE_SZ, GPUSHARE_PAGE_BYTES);
	*wakeup = (struct wakeup){.fd = steal_fd(&fd), .left = WAKEUPS, .refilled_ns = now_ns};
	return 0;
}

void wakeup_close(struct wakeup *wakeup)
{
	close(wakeup->fd);
}

static void refill(struct wakeup *wakeup, uint64_t now_ns)
{
	uint64_t more = (now_ns - wakeup->refilled_ns) / REFILL_NS;

	wakeup->refilled_ns += more * REFILL_NS;
	wakeup->left = more < WAKEUPS - wakeup->left ? wakeup->left + (uint32_t)more : WAKEUPS;
}

bool wakeup_drain(struct wakeup *wakeup, uint64_t now_ns)
{
	char bytes[GPUSHARE_PAGE_BYTES];

	(void)!read(wakeup->fd, bytes, sizeof(bytes));
	refill(wakeup, now_ns);
	wakeup->left--;
	wakeup->muted_until_ns = wakeup->left ? 0 : wakeup->refilled_ns + REFILL_NS;
	return wakeup->left > 0;
}
