/* SPDX-License-Identifier: Apache-2.0
 *
 * Another thread of the program puts its own file at the number that a descriptor of the library's
 * was just moved to: the library does not take it for its own, and does not close it.
 */
#include "quota/descriptor.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

int raced_fcntl(int low, int command, ...); /* what descriptor.c calls here */

static int high = -1;

static int opened(const char *path)
{
	const int number = open(path, O_RDONLY | O_CLOEXEC);

	if (number < 0)
		abort();
	return number;
}

int raced_fcntl(int low, int command, ...)
{
	va_list rest;

	va_start(rest, command);
	high = fcntl(low, command, va_arg(rest, int));
	va_end(rest);
	if (high < 0 || dup2(opened("/dev/zero"), high) != high)
		abort();
	return high;
}

int main(void)
{
	const int low = opened("/dev/null");
	struct kept_descriptor kept;
	struct stat there, zero;

	if (descriptor_keep(&kept, low) || fstat(low, &there) == 0)
		return 1;
	descriptor_close(&kept);
	if (high < 0 || fstat(high, &there) != 0 || stat("/dev/zero", &zero) != 0)
		return 2;
	return there.st_ino != zero.st_ino || there.st_dev != zero.st_dev;
}
