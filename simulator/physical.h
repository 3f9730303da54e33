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
	struct sim_card *card; /* null: on the host, not counted */
	uint64_t maker; /* process tag, and the number of that process's piece: the same in all
			   processes */
	uint64_t number;
	bool shared; /* a piece (piece.h), no longer private to this process */
	int fd;
	unsigned int references; /* handles and mappings; under the space's latch */
	struct physical *next;	 /* of this process's */
};

/* The memory of a handle; null if there is none. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);

/* With the space's latch held: remove a reference; with the last one, the memory is released. */
void physical_drop(struct physical *physical);

/* Off its cards, this process gets a copy of its own of what it shares: a restore takes memory of
 * the card for it, and the others keep theirs. */
void physicals_part(void);

/* vmm.c, with the latch held: have a memory's mappings show its file. */
void mappings_show(struct physical *physical);

/* vmm.c: what is mapped at [pointer, pointer + bytes), all of it by one mapping, and its offset in
 * the memory; null if nothing is. With the latch held. */
struct physical *mapped_at(CUdeviceptr pointer, size_t bytes, size_t *offset);

#endif
