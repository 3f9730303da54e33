/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that graphs allocate: the allocations (graph_allocation.c), what each instance needs
 * (footprint.c), and the pages that the process has for them on a card (graph_reserve.c). It is
 * taken when an instance is first uploaded or launched, not before.
 */
#ifndef GPUSHARE_SIMULATOR_GRAPH_MEMORY_H
#define GPUSHARE_SIMULATOR_GRAPH_MEMORY_H

#include "graph.h"
#include "memory.h"

struct allocation {
	struct region *region;
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	CUdevice card;
	CUgraph owner;			    /* null: destroyed */
	bool freed_inside, freed_elsewhere; /* by a free node of the owner, of another graph */
	bool instantiated;
	bool live; /* allocated by a launch, freed by none */
	unsigned int holders;
	struct allocation *next;
};

struct hold {
	struct allocation *allocation;
	bool own; /* allocated by a step of the instance, not only freed */
};

struct footprint {
	uint64_t scratch_bytes[SIM_CARDS]; /* for what is freed within a launch */
	size_t outliving_count, held_count;
	struct allocation **outliving;
	struct hold *held;
	CUstream stream; /* for which it has pages; null: it has none */
	struct footprint *next;
};

/* Guards all of this; taken before the pools' latch and the space's. */
extern struct latch graph_memory;
extern struct allocation *allocations;
extern struct footprint *footprints;

/* The rest with the latch held. */

/* Grow the reserves to what is used now; false if a card has no room for that. */
bool reserves_cover(void);
void allocation_set_live(struct allocation *allocation, bool live);
void allocation_drop(struct allocation *allocation);

#endif
