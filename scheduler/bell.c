/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include "bell.h"

#include "cleanup.h"
#include "clock.h"
#include "gpushare_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* A look costs some microseconds of everybody's scheduler. Who launches one small piece of work
 * after another rings twice for each; so often is enough for any share to be exact. */
#define RINGS 128
#define REFILL_NS MS /* for one more */

int bell_open(struct bell *bell, int directory, uint64_t now_ns)
{
	struct stat found;
	/* For writing too: without a writer a FIFO is always ready, and says that it has ended. */
	CLEANUP_FD int fd =
		openat(directory, GPUSHARE_BELL_NAME, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &found) < 0)
		return errno;
	if (!S_ISFIFO(found.st_mode))
		return ENXIO;
	/* One page, which one read takes out. Where that is refused a read leaves something, and
	 * comes again. */
	(void)fcntl(fd, F_SETPIPE_SZ, GPUSHARE_PAGE_BYTES);
	*bell = (struct bell){.fd = steal_fd(&fd), .left = RINGS, .refilled_ns = now_ns};
	return 0;
}

void bell_close(struct bell *bell)
{
	close(bell->fd);
}

static void refill(struct bell *bell, uint64_t now_ns)
{
	uint64_t more = (now_ns - bell->refilled_ns) / REFILL_NS;

	bell->refilled_ns += more * REFILL_NS;
	bell->left = more < RINGS - bell->left ? bell->left + (uint32_t)more : RINGS;
}

bool bell_drain(struct bell *bell, uint64_t now_ns)
{
	char rings[GPUSHARE_PAGE_BYTES];

	(void)!read(bell->fd, rings, sizeof(rings));
	refill(bell, now_ns);
	bell->left--;
	bell->deaf_until_ns = bell->left ? 0 : bell->refilled_ns + REFILL_NS;
	return bell->left > 0;
}
