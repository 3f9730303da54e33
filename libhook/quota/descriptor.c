/* SPDX-License-Identifier: Apache-2.0 */
#include "descriptor.h"

#include <fcntl.h>
#include <unistd.h>

/* Above the numbers that programs expect to receive, and that shells let users choose; below 64.
 * A process's file table has room for NR_OPEN_DEFAULT = BITS_PER_LONG = 64 descriptors. A higher
 * number makes it grow, and while threads share the table, expand_fdtable (fs/file.c) then waits in
 * synchronize_rcu: about 15 ms on Linux 6.18. */
#define LOWEST_NUMBER 40

/* To the lowest free number from there on; RLIMIT_NOFILE may be lower, and then it stays. */
static int move_up(int low)
{
	int high = fcntl(low, F_DUPFD_CLOEXEC, LOWEST_NUMBER);

	if (high < 0)
		return low;
	close(low);
	return high;
}

bool descriptor_keep(struct kept_descriptor *kept, int low)
{
	kept->number = low < 0 ? -1 : move_up(low);
	return kept->number >= 0 && fstat(kept->number, &kept->identity) == 0;
}

bool descriptor_is_ours(const struct kept_descriptor *kept)
{
	struct stat status;

	return kept->number >= 0 && fstat(kept->number, &status) == 0 &&
	       status.st_dev == kept->identity.st_dev && status.st_ino == kept->identity.st_ino;
}

void descriptor_close(struct kept_descriptor *kept)
{
	if (descriptor_is_ours(kept))
		close(kept->number);
	kept->number = -1;
}
