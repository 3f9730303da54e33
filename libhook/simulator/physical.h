/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory that has no address of its own; vmm.c maps it.
 */
#ifndef GPUSHARE_SIMULATOR_PHYSICAL_H
#define GPUSHARE_SIMULATOR_PHYSICAL_H

#include "driver.h"

struct physical {
	uint64_t kind;
	CUmemAllocationProp properties;
	size_t bytes;
	bool counted;
	int fd;
	unsigned int references; /* handles and mappings; under the space's latch */
};

/* What a handle stands for; null if for nothing. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);

/* With the space's latch held: one reference less, and with the last one the memory goes. */
void physical_drop(struct physical *physical);

#endif
