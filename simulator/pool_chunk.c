/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool's memory as it is reserved: in chunks. Chunks without allocations, beyond the release
 * threshold, return to the card when the program next synchronizes.
 */
#include "pool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void raise(uint64_t *high, uint64_t value)
{
	if (*high < value)
		*high = value;
}

/* The location of the contents: for device memory in the second range, for host memory at the
 * address itself. */
static void *chunk_contents(CUmemoryPool pool, const struct chunk *chunk)
{
	return (void *)(chunk->region->base + (pool_on_card(pool) ? space_shadow() : 0));
}

static bool chunk_back(CUmemoryPool pool, struct chunk *chunk, uint64_t bytes)
{
	void *contents = chunk_contents(pool, chunk);

	if (pool->fd >= 0)
		return mmap(contents, bytes, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, pool->fd,
			       (off_t)chunk->file_offset) != MAP_FAILED;
	return pool_on_card(pool) || mprotect(contents, bytes, PROT_READ | PROT_WRITE) == 0;
}

static void chunk_unback(CUmemoryPool pool, struct chunk *chunk)
{
	uint64_t bytes = chunk->region->units * UNIT_BYTES;

	if (pool->fd < 0 && pool_on_card(pool))
		return;
	mmap(chunk_contents(pool, chunk), bytes,
		pool_on_card(pool) ? PROT_READ | PROT_WRITE : PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	chunk->region->written = false;
	if (pool->fd >= 0 && !pool->imported)
		fallocate(pool->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)chunk->file_offset, (off_t)bytes);
}

static bool chunk_counted(CUmemoryPool pool)
{
	return pool_on_card(pool) && !pool->imported;
}

/* The region of a chunk, with the card's memory if the pool has any of its own. */
static CUresult chunk_region(
	CUmemoryPool pool, CUcontext context, uint64_t units, struct region **region)
{
	if (chunk_counted(pool))
		return region_take(context, REGION_POOL, units, region);
	*region = region_new(pool_on_card(pool) ? REGION_POOL : REGION_HOST, (uint32_t)units, 1);
	REQUIRE(*region, CUDA_ERROR_OUT_OF_MEMORY);
	(*region)->context = context;
	return CUDA_SUCCESS;
}

static void chunk_region_give(CUmemoryPool pool, struct region *region)
{
	if (chunk_counted(pool))
		region_give(region);
	else
		region_free(region);
}

/* With the space's latch held too. */
static CUresult chunk_make(
	CUmemoryPool pool, CUcontext context, struct chunk *chunk, uint64_t bytes)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (space_ready() && bytes / UNIT_BYTES < UINT32_MAX)
		result = chunk_region(pool, context, bytes / UNIT_BYTES, &chunk->region);
	if (result != CUDA_SUCCESS)
		return result;
	if (!chunk_back(pool, chunk, bytes)) {
		chunk_region_give(pool, chunk->region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	chunk->region->pool = pool;
	chunk->region->chunk = chunk;
	chunk->region->bytes = bytes;
	return CUDA_SUCCESS;
}

CUresult chunk_new(CUmemoryPool pool, CUcontext context, uint64_t file_offset, uint64_t bytes,
	struct chunk **result)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));
	struct block *block = calloc(1, sizeof(*block));
	CUresult status = CUDA_ERROR_OUT_OF_MEMORY;

	if (chunk && block) {
		*block = (struct block){.bytes = bytes};
		chunk->blocks = block;
		chunk->file_offset = file_offset;
		space_take();
		status = chunk_make(pool, context, chunk, bytes);
		space_drop();
	}
	if (status != CUDA_SUCCESS) {
		free(chunk);
		free(block);
		return status;
	}
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	if (!pool->imported) {
		pool->reserved_bytes += bytes;
		raise(&pool->reserved_high, pool->reserved_bytes);
	}
	*result = chunk;
	return CUDA_SUCCESS;
}

void chunk_free(CUmemoryPool pool, struct chunk **link)
{
	struct chunk *chunk = *link;

	*link = chunk->next;
	if (!pool->imported)
		pool->reserved_bytes -= chunk->region->units * UNIT_BYTES;
	space_take();
	chunk_unback(pool, chunk);
	chunk_region_give(pool, chunk->region);
	space_drop();
	while (chunk->blocks) {
		struct block *block = chunk->blocks;

		chunk->blocks = block->next;
		free(block);
	}
	free(chunk);
}

void pool_trim(CUmemoryPool pool, uint64_t keep)
{
	for (struct chunk **link = &pool->chunks; *link && pool->reserved_bytes > keep;) {
		if ((*link)->taken == 0)
			chunk_free(pool, link);
		else
			link = &(*link)->next;
	}
}

void pools_trim(void)
{
	if (!pool_first())
		return;
	latch_take(&pools_latch);
	for (CUmemoryPool pool = pool_first(); pool; pool = pool->next)
		pool_trim(pool, pool->release_threshold);
	latch_drop(&pools_latch);
}

void pools_forget_context(CUcontext context)
{
	latch_take(&pools_latch);
	for (CUmemoryPool pool = pool_first(); pool; pool = pool->next) {
		if (pool->context != context)
			continue;
		while (pool->chunks)
			chunk_free(pool, &pool->chunks);
		pool->context = NULL;
		pool->used_bytes = 0;
	}
	latch_drop(&pools_latch);
}

CUresult chunk_grow(CUmemoryPool pool, CUcontext context, uint64_t bytes, struct chunk **chunk)
{
	uint64_t room = pool->most_bytes ? pool->most_bytes - pool->reserved_bytes : UINT64_MAX;
	uint64_t least = round_up(bytes, UNIT_BYTES), wanted = round_up(bytes, POOL_CHUNK_BYTES);
	CUresult result;

	REQUIRE(least <= room, CUDA_ERROR_OUT_OF_MEMORY);
	if (wanted > room)
		wanted = room / UNIT_BYTES * UNIT_BYTES;
	if (pool->fd >= 0 && ftruncate(pool->fd, (off_t)(pool->file_bytes + wanted)) != 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = chunk_new(pool, context, pool->file_bytes, wanted, chunk);
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		/* Memory that any pool of the process retains is released first. */
		for (CUmemoryPool other = pool_first(); other; other = other->next)
			pool_trim(other, 0);
		result = chunk_new(pool, context, pool->file_bytes, wanted, chunk);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY && least < wanted)
		result = chunk_new(pool, context, pool->file_bytes, least, chunk);
	if (result == CUDA_SUCCESS)
		pool->file_bytes += (*chunk)->region->units * UNIT_BYTES;
	return result;
}
