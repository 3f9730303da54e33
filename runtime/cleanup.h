/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors and memory that are released at the end of their variable's scope.
 */
#ifndef GPUSHARE_RUNTIME_CLEANUP_H
#define GPUSHARE_RUNTIME_CLEANUP_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define CLEANUP_FD __attribute__((cleanup(cleanup_fd)))
#define CLEANUP_FREE __attribute__((cleanup(cleanup_free)))

static inline void cleanup_fd(const int *fd)
{
	int saved = errno;
	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

/* The descriptor, kept beyond its variable's scope. */
static inline int steal_fd(int *fd)
{
	int stolen = *fd;
	*fd = -1;
	return stolen;
}

static inline void cleanup_free(void *pointer)
{
	free(*(void **)pointer);
}

#endif
