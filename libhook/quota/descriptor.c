/* SPDX-License-Identifier: Apache-2.0 */
#include "descriptor.h"

#include <fcntl.h>
#include <unistd.h>

/* Above the numbers that programs expect to receive, and that shells let users choose; below 64.
 * A process's file table has room for NR_OPEN_DEFAULT = BITS_PER_LONG = 64 descriptors. A higher
 * number makes it grow, and while threads share the table, expand_fdtable (fs/file.c) then waits in
 * synchronize_rcu: about 15 ms on Linux 6.18. */
#define LOWEST_NUMBER 40

/* To the lowest free number from there on; RLIMIT_NOFILE may be lower, and then it stays. What the
 * file is was asked before: by now, another thread may have put a file of the program's at either
 * number, which is not to be taken for ours and closed. */
bool descriptor_keep(struct kept_descriptor *kept, int low)
{
	struct kept_descriptor opened = {.number = low};

	kept->number = -1;
	if (low < 0 || fstat(low, &opened.identity) != 0)
		return false;
	*kept = opened;
	kept->number = fcntl(low, F_DUPFD_CLOEXEC, LOWEST_NUMBER);
	if (kept->number < 0)
		kept->number = low;
	else
		descriptor_close(&opened);
	return descriptor_is_ours(kept);
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
