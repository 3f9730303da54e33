/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: pool.c has them as objects, pool_memory.c what they hold, pool_share.c their use by
 * other processes.
 */
#ifndef GPUSHARE_SIMULATOR_POOL_H
#define GPUSHARE_SIMULATOR_POOL_H

#include "memory.h"

/* A pool grows by multiples of this while the card has room, otherwise by what is needed. An
 * estimate: drivers of CUDA 11 and 12 were observed to reserve 32 MiB for a pool's first small
 * allocation; CUDA documents no figure. */
#define POOL_CHUNK_BYTES (UINT64_C(32) << 20)

/* Part of a chunk, in the order of addresses. */
struct block {
	uint64_t offset, bytes;
	size_t requested_bytes; /* 0: free */
	struct block *previous, *next;
};

/* Memory that a pool reserved at once; it is released as a whole. */
struct chunk {
	struct region *region;
	struct block *blocks;
	unsigned int taken; /* blocks */
	uint64_t file_offset;
	struct chunk *next;
};

struct CUmemPoolHandle_st {
	uint32_t kind; /* 0: destroyed; its allocations keep it alive */
	CUmemLocation location;
	CUmemAllocationHandleType handle_types;
	int fd; /* of memory that can be shared; otherwise -1 */
	bool imported;
	CUcontext context;   /* the account that the memory is on */
	uint64_t most_bytes; /* 0: as much as there is */
	uint64_t release_threshold;
	uint64_t reserved_bytes, reserved_high, used_bytes, used_high;
	uint64_t file_bytes;
	CUmemAccess_flags access[SIM_CARDS];
	int reuse[3];
	struct chunk *chunks;
	CUmemoryPool next;
};

/* Guards all pools; taken before the space's latch. */
extern struct latch pools_latch;

bool pool_valid(CUmemoryPool pool);
/* In the list of all; null without memory. */
CUmemoryPool pool_new(CUmemLocation location, CUmemAllocationHandleType handle_types);
CUmemoryPool pool_first(void);
/* Before it holds anything: its memory will be shareable with other processes. */
bool pool_make_shareable(CUmemoryPool pool);

static inline uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static inline bool pool_on_card(const struct CUmemPoolHandle_st *pool)
{
	return pool->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* The rest with the latch held. */

/* For a destroyed pool that holds nothing: close what it was shared through. */
void pool_end(CUmemoryPool pool);
CUresult chunk_new(CUmemoryPool pool, CUcontext context, uint64_t file_offset, uint64_t bytes,
	struct chunk **chunk);
/* For at least `bytes`: by the pool's preferred growth, or by no more than needed. */
CUresult chunk_grow(CUmemoryPool pool, CUcontext context, uint64_t bytes, struct chunk **chunk);
/* Remove the chunk at `link` from the list and release it. */
void chunk_free(CUmemoryPool pool, struct chunk **link);
/* Release what the pool retains beyond `keep` bytes. */
void pool_trim(CUmemoryPool pool, uint64_t keep);
/* Another process's memory: `bytes` of the pool's file at `offset`. */
CUresult pool_map(
	CUmemoryPool pool, CUcontext context, uint64_t offset, size_t bytes, CUdeviceptr *pointer);

#endif
