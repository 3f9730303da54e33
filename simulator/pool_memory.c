/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations from pools: parts of their chunks. Freed memory stays with the pool, for the next
 * allocation that it fits.
 */
#include "pool.h"

#include <stdlib.h>

#define PAGE_BYTES 4096 /* shared memory is mapped by pages */

static void raise(uint64_t *high, uint64_t value)
{
	if (*high < value)
		*high = value;
}

/* The first free block that is large enough. */
static struct block *find_block(CUmemoryPool pool, uint64_t bytes, struct chunk **chunk)
{
	for (*chunk = pool->chunks; *chunk; *chunk = (*chunk)->next) {
		for (struct block *block = (*chunk)->blocks; block; block = block->next) {
			if (!block->requested_bytes && block->bytes >= bytes)
				return block;
		}
	}
	return NULL;
}

/* Shrink the block to `bytes`, and make the rest a free block after it. */
static bool split(struct block *block, uint64_t bytes)
{
	struct block *rest;

	if (block->bytes == bytes)
		return true;
	rest = calloc(1, sizeof(*rest));
	if (!rest)
		return false;
	*rest = (struct block){block->offset + bytes, block->bytes - bytes, 0, block, block->next};
	if (rest->next)
		rest->next->previous = rest;
	block->next = rest;
	block->bytes = bytes;
	return true;
}

static CUresult pool_take(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	uint64_t rounded = round_up(bytes, pool->fd >= 0 ? PAGE_BYTES : GRANULE_BYTES);
	struct chunk *chunk;
	struct block *block;
	bool fits;

	REQUIRE(rounded >= bytes && rounded < UINT64_MAX / 2, CUDA_ERROR_OUT_OF_MEMORY);
	block = find_block(pool, rounded, &chunk);
	if (!block) {
		CUresult result = chunk_grow(pool, context, rounded, &chunk);

		if (result != CUDA_SUCCESS)
			return result;
		block = chunk->blocks;
	}
	space_take();
	fits = split(block, rounded);
	if (fits)
		block->requested_bytes = bytes;
	space_drop();
	REQUIRE(fits, CUDA_ERROR_OUT_OF_MEMORY);
	chunk->taken++;
	pool->used_bytes += rounded;
	raise(&pool->used_high, pool->used_bytes);
	*pointer = chunk->region->base + block->offset;
	return CUDA_SUCCESS;
}

CUresult pool_map(
	CUmemoryPool pool, CUcontext context, uint64_t offset, size_t bytes, CUdeviceptr *pointer)
{
	struct chunk *chunk;
	CUresult result = chunk_new(pool, context, offset, round_up(bytes, UNIT_BYTES), &chunk);

	if (result != CUDA_SUCCESS)
		return result;
	chunk->blocks->requested_bytes = bytes;
	chunk->taken = 1;
	*pointer = chunk->region->base;
	return CUDA_SUCCESS;
}

static struct block *block_at(const struct region *region, CUdeviceptr pointer)
{
	struct block *block = region->chunk->blocks;

	while (block->next && pointer - region->base >= block->next->offset)
		block = block->next;
	return block;
}

bool chunk_find(struct region *region, CUdeviceptr pointer, struct extent *extent)
{
	const struct block *block = block_at(region, pointer);

	*extent = (struct extent){region, region->base + block->offset, block->requested_bytes};
	return pointer - extent->base < extent->bytes;
}

/* Merge the following block into this one. */
static void merge_next(struct block *block)
{
	struct block *gone = block->next;

	block->bytes += gone->bytes;
	block->next = gone->next;
	if (gone->next)
		gone->next->previous = block;
	free(gone);
}

/* With the space's latch held too. */
static void block_free(struct block *block)
{
	block->requested_bytes = 0;
	if (block->next && !block->next->requested_bytes)
		merge_next(block);
	if (block->previous && !block->previous->requested_bytes)
		merge_next(block->previous);
}

CUresult pool_give(CUdeviceptr pointer)
{
	struct extent extent;
	struct chunk *chunk;
	CUmemoryPool pool;

	latch_take(&pools_latch);
	if (!memory_find(pointer, &extent) || extent.base != pointer || !extent.region->pool) {
		latch_drop(&pools_latch);
		return CUDA_ERROR_INVALID_VALUE;
	}
	pool = extent.region->pool;
	chunk = extent.region->chunk;
	space_take();
	pool->used_bytes -= pool->imported ? 0 : block_at(extent.region, pointer)->bytes;
	block_free(block_at(extent.region, pointer));
	space_drop();
	chunk->taken--;
	if (pool->imported || !pool_valid(pool)) {
		for (struct chunk **link = &pool->chunks; *link;) {
			if ((*link)->taken == 0)
				chunk_free(pool, link);
			else
				link = &(*link)->next;
		}
		pool_end(pool);
	}
	latch_drop(&pools_latch);
	return CUDA_SUCCESS;
}

/* A pool's memory is on the account of the first context of its card that used it. */
static CUcontext account(CUmemoryPool pool, CUcontext user)
{
	if (!pool_on_card(pool) || user->device == pool->location.id)
		return user;
	return context_primary(pool->location.id);
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream handle,
	enum stream_flavour flavour)
{
	IN_CALL();
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(pointer && bytes > 0, CUDA_ERROR_INVALID_VALUE);
	if (!pool && cuDeviceGetMemPool(&pool, stream->context->device) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	REQUIRE(pool_valid(pool), CUDA_ERROR_INVALID_VALUE);
	/* Only the other process can allocate its memory. */
	REQUIRE(!pool->imported, CUDA_ERROR_NOT_SUPPORTED);
	if (stream_captures(stream))
		return capture_allocation(stream, pool->location, bytes, pointer);
	REQUIRE_NO_FAULT(stream->context->card);
	latch_take(&pools_latch);
	if (!pool->context)
		pool->context = account(pool, stream->context);
	if (pool->context)
		status = pool_take(pool, pool->context, bytes, pointer);
	else
		status = CUDA_ERROR_INVALID_CONTEXT;
	latch_drop(&pools_latch);
	return status;
}

static CUresult release(CUdeviceptr pointer, CUstream handle, enum stream_flavour flavour)
{
	IN_CALL();
	struct extent extent;
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
	if (stream_captures(stream))
		return capture_release(stream, pointer);
	REQUIRE(memory_find(pointer, &extent) && extent.base == pointer, CUDA_ERROR_INVALID_VALUE);
	if (extent.region->kind == REGION_GRAPH)
		return graph_memory_give(pointer);
	return extent.region->pool ? pool_give(pointer) : memory_give(pointer);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate(pointer, bytes, NULL, stream, STREAM_LEGACY);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate(pointer, bytes, NULL, stream, STREAM_PER_THREAD);
}

CUresult cuMemAllocFromPoolAsync(
	CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
	return allocate(pointer, bytes, pool, stream, STREAM_LEGACY);
}

CUresult cuMemAllocFromPoolAsync_ptsz(
	CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
	return allocate(pointer, bytes, pool, stream, STREAM_PER_THREAD);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	return release(pointer, stream, STREAM_LEGACY);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	return release(pointer, stream, STREAM_PER_THREAD);
}
