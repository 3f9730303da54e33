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
	struct sim_card *card; /* null: on the host, counted nowhere */
	uint64_t maker;	       /* process tag, and which of that process's: the same in all */
	uint64_t number;
	bool shared; /* a piece (piece.h), no longer this process's alone */
	int fd;
	unsigned int references; /* handles and mappings; under the space's latch */
	struct physical *next;	 /* of this process's */
};

/* What a handle stands for; null if for nothing. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);

/* With the space's latch held: one reference less, and with the last one the memory goes. */
void physical_drop(struct physical *physical);

/* vmm.c: what is mapped at [pointer, pointer + bytes), all of it by one mapping, and from where in
 * the memory on; null if nothing is. With the latch held. */
struct physical *mapped_at(CUdeviceptr pointer, size_t bytes, size_t *offset);

#endif
