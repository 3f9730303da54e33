/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocating and freeing device memory. As in the real driver, an allocation of more than half a
 * unit has units of its own, and smaller ones share units.
 */
#include "external.h"
#include "ipc.h"
#include "memory.h"

#include <stdlib.h>

/* A context's regions, and among them the block that small allocations are tried in first. */
struct holdings {
	CUcontext context;
	struct region *regions;
	struct region *block;
	struct holdings *next;
};

static struct holdings *all;
/* Of the last block that was released: nothing live, so all zeros. */
static struct small *spare;

static struct holdings *holdings_of(CUcontext context)
{
	struct holdings *holdings;

	for (holdings = all; holdings; holdings = holdings->next) {
		if (holdings->context == context)
			return holdings;
	}
	holdings = calloc(1, sizeof(*holdings));
	if (!holdings)
		return NULL;
	holdings->context = context;
	holdings->next = all;
	all = holdings;
	return holdings;
}

CUresult region_take(
	CUcontext context, enum region_kind kind, uint64_t units, struct region **result)
{
	struct holdings *holdings = holdings_of(context);
	struct region *region;
	bool fits;

	REQUIRE(holdings && units < UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY);
	card_lock(context->card);
	fits = card_reserve(context->card, units * UNIT_BYTES);
	card_unlock(context->card);
	REQUIRE(fits, CUDA_ERROR_OUT_OF_MEMORY);
	region = region_new(kind, (uint32_t)units, 1);
	if (!region) {
		card_lock(context->card);
		card_release(context->card, units * UNIT_BYTES);
		card_unlock(context->card);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->context = context;
	region->counted_bytes = units * UNIT_BYTES;
	region->next = holdings->regions;
	if (holdings->regions)
		holdings->regions->previous = region;
	holdings->regions = region;
	*result = region;
	return CUDA_SUCCESS;
}

void region_give(struct region *region)
{
	struct holdings *holdings = holdings_of(region->context);
	struct sim_card *card = region->context->card;
	size_t bytes = region->counted_bytes;

	if (holdings->block == region)
		holdings->block = NULL;
	if (region->previous)
		region->previous->next = region->next;
	else
		holdings->regions = region->next;
	if (region->next)
		region->next->previous = region->previous;
	if (region->ipc)
		ipc_forget_region(region);
	region_free(region);
	card_lock(card);
	card_release(card, bytes);
	card_unlock(card);
}

/* `count` free granules in a row: within a word of the map, or whole words. GRANULES if none. */
static uint32_t find_granules(const struct small *small, uint32_t count)
{
	const uint32_t words = GRANULES / 64;

	for (uint32_t word = small->hint; word < words && count <= 64; word++) {
		uint64_t room = ~small->taken[word];

		for (uint32_t have = 1; have < count && room;) {
			uint32_t step = have < count - have ? have : count - have;

			room &= room >> step;
			have += step;
		}
		if (room)
			return word * 64 + (uint32_t)__builtin_ctzll(room);
	}
	for (uint32_t word = small->hint, run = 0; word < words && count > 64; word++) {
		run = small->taken[word] ? 0 : run + 1;
		if (run * 64 >= count)
			return (word + 1 - run) * 64;
	}
	return GRANULES;
}

static void mark_granules(struct small *small, uint32_t first, uint32_t count, bool taken)
{
	while (count > 0) {
		uint32_t bit = first % 64;
		uint32_t here = count < 64 - bit ? count : 64 - bit;
		uint64_t mask = (here == 64 ? ~UINT64_C(0) : (UINT64_C(1) << here) - 1) << bit;

		if (taken)
			small->taken[first / 64] |= mask;
		else
			small->taken[first / 64] &= ~mask;
		first += here;
		count -= here;
	}
}

static uint32_t granules_of(size_t bytes)
{
	return (uint32_t)((bytes + GRANULE_BYTES - 1) / GRANULE_BYTES);
}

static CUdeviceptr small_take(struct region *block, size_t bytes)
{
	struct small *small = block->small;
	uint32_t first = find_granules(small, granules_of(bytes));

	if (first == GRANULES)
		return 0;
	mark_granules(small, first, granules_of(bytes), true);
	small->bytes[first] = (uint32_t)bytes;
	small->live++;
	while (small->hint < GRANULES / 64 - 1 && small->taken[small->hint] == ~UINT64_C(0))
		small->hint++;
	return block->base + (uint64_t)first * GRANULE_BYTES;
}

/* In one of the context's blocks, or in a new one. */
static CUresult take_shared(CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	struct holdings *holdings = holdings_of(context);
	struct region *block;
	CUresult result;

	REQUIRE(holdings, CUDA_ERROR_OUT_OF_MEMORY);
	if (holdings->block && (*pointer = small_take(holdings->block, bytes)))
		return CUDA_SUCCESS;
	for (block = holdings->regions; block; block = block->next) {
		if (block->kind != REGION_SHARED || !(*pointer = small_take(block, bytes)))
			continue;
		holdings->block = block;
		return CUDA_SUCCESS;
	}
	result = region_take(context, REGION_SHARED, 1, &block);
	if (result != CUDA_SUCCESS)
		return result;
	block->small = spare ? spare : calloc(1, sizeof(*block->small));
	spare = NULL;
	if (!block->small) {
		region_give(block);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	holdings->block = block;
	*pointer = small_take(block, bytes);
	return CUDA_SUCCESS;
}

static CUresult take_whole(CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	struct region *region;
	CUresult result = region_take(
		context, REGION_WHOLE, bytes / UNIT_BYTES + (bytes % UNIT_BYTES != 0), &region);

	if (result != CUDA_SUCCESS)
		return result;
	region->bytes = bytes;
	*pointer = region->base;
	return CUDA_SUCCESS;
}

CUresult memory_take(CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	space_take();
	if (space_ready())
		result = bytes > SMALL_BYTES ? take_whole(context, bytes, pointer)
					     : take_shared(context, bytes, pointer);
	space_drop();
	return result;
}

/* The allocation of a block that contains `pointer`: the nearest start at or before it. */
static bool find_small(struct region *block, CUdeviceptr pointer, struct extent *extent)
{
	int64_t granule = (int64_t)((pointer - block->base) / GRANULE_BYTES);

	while (granule >= 0 && block->small->bytes[granule] == 0)
		granule--;
	if (granule < 0)
		return false;
	*extent = (struct extent){block, block->base + (uint64_t)granule * GRANULE_BYTES,
		block->small->bytes[granule]};
	return pointer - extent->base < extent->bytes;
}

bool memory_find_held(CUdeviceptr pointer, struct extent *extent)
{
	struct region *region = region_at(pointer);

	if (!region || region->idle)
		return false;
	if (region->kind == REGION_SHARED)
		return find_small(region, pointer, extent);
	if (region->chunk)
		return chunk_find(region, pointer, extent);
	if (region->kind == REGION_OPENED)
		return ipc_find(region, pointer, extent);
	*extent = (struct extent){region, region->base, region->bytes};
	return pointer - region->base < region->bytes;
}

bool memory_find(CUdeviceptr pointer, struct extent *extent)
{
	bool found;

	space_take();
	found = memory_find_held(pointer, extent);
	space_drop();
	return found;
}

static CUresult give(CUdeviceptr pointer)
{
	struct extent extent;

	REQUIRE(memory_find_held(pointer, &extent) && extent.base == pointer,
		CUDA_ERROR_INVALID_VALUE);
	if (extent.region->kind == REGION_EXTERNAL) {
		external_give(extent.region);
		return CUDA_SUCCESS;
	}
	REQUIRE(extent.region->kind == REGION_WHOLE || extent.region->kind == REGION_SHARED,
		CUDA_ERROR_INVALID_VALUE);
	if (extent.region->kind == REGION_SHARED) {
		struct small *small = extent.region->small;
		uint32_t first = (uint32_t)((pointer - extent.region->base) / GRANULE_BYTES);

		mark_granules(small, first, granules_of(extent.bytes), false);
		small->bytes[first] = 0;
		if (first / 64 < small->hint)
			small->hint = first / 64;
		if (--small->live > 0)
			return CUDA_SUCCESS;
		if (!spare) {
			small->hint = 0;
			spare = small;
			extent.region->small = NULL;
		}
	}
	region_give(extent.region);
	return CUDA_SUCCESS;
}

CUresult memory_give(CUdeviceptr pointer)
{
	CUresult result;

	space_take();
	result = give(pointer);
	space_drop();
	return result;
}

void *memory_contents(CUdeviceptr pointer, size_t bytes, bool writing)
{
	struct extent extent;
	void *contents = NULL;

	space_take();
	if (memory_find_held(pointer, &extent) && bytes <= extent.bytes - (pointer - extent.base)) {
		extent.region->written |= writing;
		if (extent.region->kind == REGION_RESERVED)
			contents = mapping_contents(extent.region, pointer, bytes);
		else if (extent.region->kind == REGION_MANAGED ||
			 extent.region->kind == REGION_HOST)
			contents = (void *)pointer;
		else
			contents = (void *)(pointer + space_shadow());
	}
	space_drop();
	return contents;
}

void memory_forget_context(CUcontext context)
{
	ipc_forget_context(context);
	external_forget_context(context);
	space_take();
	for (struct holdings **link = &all; *link; link = &(*link)->next) {
		struct holdings *gone = *link;

		if (gone->context != context)
			continue;
		while (gone->regions)
			region_give(gone->regions);
		*link = gone->next;
		free(gone);
		break;
	}
	space_drop();
}
