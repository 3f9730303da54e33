/* SPDX-License-Identifier: Apache-2.0
 *
 * Managed memory: addresses that both sides may access. It is counted on a card from its prefetch
 * there to its free, or to its prefetch to another card; one to the host changes nothing (an H200
 * with driver 580). No kernel accesses memory, so nothing else moves it to a card. Other memory
 * that needs the room moves it to the host (evict_managed). NVML includes it in the used memory of
 * the card and attributes it to no process, as with NVIDIA's driver, where managed memory belongs
 * to the kernel module.
 */
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#define CPU (-1) /* CU_DEVICE_CPU */

static struct region *regions; /* all of them; under the space's latch */

bool managed_exists(void)
{
	bool exists;

	space_take();
	exists = regions != NULL;
	space_drop();
	return exists;
}

static CUresult take(CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	uint64_t units = bytes / UNIT_BYTES + (bytes % UNIT_BYTES != 0);
	struct region *region;

	REQUIRE(space_ready() && units < UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY);
	region = region_new(REGION_MANAGED, (uint32_t)units, 1);
	REQUIRE(region, CUDA_ERROR_OUT_OF_MEMORY);
	if (mprotect((void *)region->base, units * UNIT_BYTES, PROT_READ | PROT_WRITE) != 0) {
		region_free(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->context = context;
	region->bytes = bytes;
	region->resident = context->device;
	region->next = regions;
	if (regions)
		regions->previous = region;
	regions = region;
	*pointer = region->base;
	return CUDA_SUCCESS;
}

/* Whether a card has room for that much more and all that this process may still move there. */
static bool fits(struct sim_card *card, uint64_t bytes)
{
	bool has_room;

	space_take();
	for (const struct region *region = regions; region; region = region->next)
		bytes += region->bytes - region->counted_bytes;
	space_drop();
	card_lock(card);
	has_room = card_has_room(card, bytes);
	card_unlock(card);
	return has_room;
}

CUresult managed_take(CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	CUresult result;

	space_take();
	result = take(context, bytes, pointer);
	space_drop();
	return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && bytes > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE_NO_CAPTURE();
	REQUIRE_NO_FAULT(context->card);
	if (getenv("GPUSHARE_SIM_TRACE") && !fits(context->card, bytes))
		trace("cuMemAllocManaged", "asks for more than is free");
	return managed_take(context, bytes, pointer);
}

/* How much of the region is on the card where it is resident; unchanged if there is no room. */
static void set_counted(struct region *region, uint64_t bytes)
{
	struct sim_card *card = device_card(region->resident);
	struct sim_share *share = &card->shares[tag_process(process_tag())];
	uint64_t before;

	card_lock(card);
	/* The driver may have moved some of it to the host. */
	before = region->counted_bytes < share->managed_bytes ? region->counted_bytes
							      : share->managed_bytes;
	if (bytes < before)
		card_release(card, before - bytes);
	else if (!card_has_room(card, bytes - before) || !card_reserve(card, bytes - before))
		bytes = before;
	share->managed_bytes += bytes - before;
	card_unlock(card);
	region->counted_bytes = bytes;
}

/* With the space's latch held. */
static void give(struct region *region)
{
	set_counted(region, 0);
	if (region->previous)
		region->previous->next = region->next;
	else
		regions = region->next;
	if (region->next)
		region->next->previous = region->previous;
	mmap((void *)region->base, region->units * UNIT_BYTES, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	region->written = false;
	region_free(region);
}

static struct region *managed_at(CUdeviceptr pointer)
{
	struct region *region = region_at(pointer);

	return region && region->kind == REGION_MANAGED ? region : NULL;
}

CUresult managed_give(CUdeviceptr pointer)
{
	struct region *region;
	bool found;

	space_take();
	region = managed_at(pointer);
	found = region && region->base == pointer;
	if (found)
		give(region);
	space_drop();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void managed_forget_context(CUcontext context)
{
	struct region *next;

	space_take();
	for (struct region *region = regions; region; region = next) {
		next = region->next;
		if (region->context == context)
			give(region);
	}
	space_drop();
}

/* Card `to` has the first `bytes` of the region in addition to what it has. */
static void move(struct region *region, uint64_t bytes, CUdevice to)
{
	uint64_t span = (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
	uint64_t counted = region->counted_bytes;

	if (to != region->resident)
		set_counted(region, counted = 0);
	region->resident = to;
	set_counted(region, span > counted ? span : counted);
}

/* Nothing moves to a full card, because the real driver evicts rather than fail. It may be larger
 * than the card: then it is in host memory. */
static CUresult prefetch(CUdeviceptr pointer, size_t bytes, CUdevice to, CUstream handle,
	enum stream_flavour flavour)
{
	IN_CALL();
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	struct region *region;

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(to == CPU || device_valid(to), CUDA_ERROR_INVALID_DEVICE);
	if (stream_captures(stream))
		return capture_refuse(stream);
	space_take();
	region = managed_at(pointer);
	if (!region || bytes > region->bytes - (pointer - region->base))
		status = CUDA_ERROR_INVALID_VALUE;
	else if (to != CPU)
		move(region, bytes, to);
	space_drop();
	return status;
}

#define PLACE(location) ((location).type == CU_MEM_LOCATION_TYPE_DEVICE ? (location).id : CPU)

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice ordinal, CUstream stream)
{
	return prefetch(pointer, bytes, ordinal, stream, STREAM_LEGACY);
}

CUresult cuMemPrefetchAsync_ptsz(
	CUdeviceptr pointer, size_t bytes, CUdevice ordinal, CUstream stream)
{
	return prefetch(pointer, bytes, ordinal, stream, STREAM_PER_THREAD);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
	unsigned int flags, CUstream stream)
{
	REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
	return prefetch(pointer, bytes, PLACE(location), stream, STREAM_LEGACY);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
	unsigned int flags, CUstream stream)
{
	REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
	return prefetch(pointer, bytes, PLACE(location), stream, STREAM_PER_THREAD);
}

/* Advice is about automatic migration, which does not happen here. */
static CUresult advise(CUdeviceptr pointer, size_t bytes)
{
	struct extent extent;

	REQUIRE_DRIVER();
	REQUIRE(memory_find(pointer, &extent) && extent.region->kind == REGION_MANAGED &&
			bytes <= extent.bytes - (pointer - extent.base),
		CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice ordinal)
{
	(void)advice;
	(void)ordinal;
	return advise(pointer, bytes);
}

CUresult cuMemAdvise_v2(
	CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	(void)advice;
	(void)location;
	return advise(pointer, bytes);
}
