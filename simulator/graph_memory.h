/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that graphs allocate: the allocations (graph_allocation.c), the instances that need them
 * (graph_exec.c), and the pages that the process has for them on a card (graph_reserve.c). It is
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
	bool live; /* allocated by a launch, freed by none */
	unsigned int holders;
	struct allocation *next;
};

/* One allocation node or free node of an instance. */
struct hold {
	struct allocation *allocation;
	bool frees;
	bool alone; /* the instance does not do the other of the two: this outlives its launch, or
		       frees what outlived another's */
};

struct CUgraphExec_st {
	uint32_t kind;
	unsigned long long flags;
	uint64_t duration_ns;
	uint64_t scratch_bytes[SIM_CARDS]; /* for what is freed within a launch */
	size_t held_count;
	struct hold *held;
	CUstream stream; /* for which it has pages; null: it has none */
	struct CUgraphExec_st *next;
};

/* Guards all of this; taken before the pools' latch and the space's. */
extern struct latch graph_memory;
extern struct allocation *allocations;
extern CUgraphExec instances; /* that allocate or free */

/* Without the latch: a node that refers to it is gone. */
void allocation_leave(struct allocation *allocation);

/* The rest with the latch held. */

/* Grow the reserves to what is used now; false if a card has no room for that. */
bool reserves_cover(void);
void allocation_set_live(struct allocation *allocation, bool live);
void allocation_drop(struct allocation *allocation);

#endif
