/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: pool.c has them as objects, pool_memory.c what they hold, pool_share.c what other
 * processes may have of it.
 */
#ifndef GPUSHARE_SIMULATOR_POOL_H
#define GPUSHARE_SIMULATOR_POOL_H

#include "memory.h"

/* A pool grows by multiples of this while the card has room, else by what is needed. An estimate:
 * 32 MiB is what drivers of CUDA 11 and 12 were seen to reserve for a pool's first small
 * allocation; CUDA documents no figure. */
#define POOL_CHUNK_BYTES (UINT64_C(32) << 20)

/* Part of a chunk, in the order of addresses. */
struct block {
	uint64_t offset, bytes;
	size_t asked; /* 0: free */
	struct block *previous, *next;
};

/* Memory that a pool reserved at once; it goes back as a whole. */
struct chunk {
	struct region *region;
	struct block *blocks;
	unsigned int taken; /* blocks */
	uint64_t file_offset;
	struct chunk *next;
};

struct CUmemPoolHandle_st {
	uint32_t kind; /* 0: destroyed; what is allocated keeps it */
	CUmemLocation location;
	CUmemAllocationHandleType handle_types;
	int fd; /* of memory that can be shared; else -1 */
	bool imported;
	CUcontext context;   /* whose account the memory is on */
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
/* Before it holds anything: its memory will be one that other processes can map. */
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

/* Of a destroyed pool that holds nothing: close what it was shared through. */
void pool_end(CUmemoryPool pool);
CUresult chunk_new(CUmemoryPool pool, CUcontext context, uint64_t file_offset, uint64_t bytes,
	struct chunk **chunk);
/* For at least `bytes`: as a pool likes to grow, or by no more than that needs. */
CUresult chunk_grow(CUmemoryPool pool, CUcontext context, uint64_t bytes, struct chunk **chunk);
/* Take the chunk at `link` out of the list and give it back. */
void chunk_free(CUmemoryPool pool, struct chunk **link);
/* Give back what the pool keeps beyond `keep` bytes. */
void pool_trim(CUmemoryPool pool, uint64_t keep);
/* Another process's memory: `bytes` of the pool's file at `offset`. */
CUresult pool_map(
	CUmemoryPool pool, CUcontext context, uint64_t offset, size_t bytes, CUdeviceptr *pointer);

#endif
