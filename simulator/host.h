/* SPDX-License-Identifier: Apache-2.0
 *
 * Page-locked host memory, as cuMemHostAlloc allocates it.
 */
#ifndef GPUSHARE_SIMULATOR_HOST_H
#define GPUSHARE_SIMULATOR_HOST_H

#include "driver.h"

struct host_range {
	uintptr_t start;
	size_t bytes;
	CUcontext context;
	struct host_range *next;
};

/* The range that contains an address. */
bool host_find(const void *address, struct host_range *range);

#endif
