/* SPDX-License-Identifier: Apache-2.0 */
#include "futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int operation(int command, enum futex_scope scope)
{
	return scope == FUTEX_OF_PROCESS ? command | FUTEX_PRIVATE_FLAG : command;
}

void futex_wait(
	const _Atomic uint32_t *word, uint32_t seen, uint64_t until_ns, enum futex_scope scope)
{
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000)};
	int saved = errno;

	/* _BITSET, whose timeout is a point in time rather than a duration. */
	syscall(SYS_futex, word, operation(FUTEX_WAIT_BITSET, scope), seen,
		until_ns == UINT64_MAX ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
	errno = saved;
}

void futex_wake_all(const _Atomic uint32_t *word, enum futex_scope scope)
{
	int saved = errno;

	syscall(SYS_futex, word, operation(FUTEX_WAKE, scope), INT_MAX, NULL, NULL, 0);
	errno = saved;
}
