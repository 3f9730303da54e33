/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of day as a file says, for the programs that are started with this library: beneath
 * them the clock jumps, and it does for no other. The file, named by JUMP_FILE, has seconds. The
 * clocks that nobody can set are left alone, as settimeofday(2) leaves them.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jumped(void)
{
	const char *path = getenv("JUMP_FILE");
	FILE *file = path ? fopen(path, "re") : NULL;
	long seconds = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%ld", &seconds) != 1)
		seconds = 0;
	fclose(file);
	return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	long status = syscall(SYS_clock_gettime, clock, now);

	if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += jumped();
	return (int)status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
		return -1;
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *also)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	if (also)
		*also = now.tv_sec;
	return now.tv_sec;
}
