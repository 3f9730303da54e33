/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor that this library keeps open in a program. Programs close descriptors that they did
 * not open (closefrom, daemonize): it may be closed, or its number may refer to another file by
 * now.
 */
#ifndef GPUSHARE_DESCRIPTOR_H
#define GPUSHARE_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/stat.h>

struct kept_descriptor {
	int number; /* -1: none */
	struct stat identity;
};

/* Keep `low`, which was just opened, at a high number. False if it is negative, or not there any
 * more. */
bool descriptor_keep(struct kept_descriptor *kept, int low);

bool descriptor_is_ours(const struct kept_descriptor *kept);

/* Close it if it is ours. */
void descriptor_close(struct kept_descriptor *kept);

#endif
