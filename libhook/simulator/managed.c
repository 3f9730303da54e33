/* SPDX-License-Identifier: Apache-2.0
 *
 * Managed memory: addresses that both sides may touch. It is counted on a card while it was
 * prefetched there; no kernel touches memory, so nothing else brings it to one.
 */
#include "memory.h"

#include <sys/mman.h>

static CUresult managed_take(CUcontext context, size_t bytes, CUdeviceptr *pointer)
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
	*pointer = region->base;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && bytes > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE_NO_CAPTURE();
	space_take();
	result = managed_take(context, bytes, pointer);
	space_drop();
	return result;
}

/* How much of the region is on its context's card. */
static void set_resident(struct region *region, uint64_t bytes)
{
	struct sim_card *card = region->context->card;

	card_lock(card);
	if (bytes < region->counted_bytes) {
		card_release(card, region->counted_bytes - bytes);
		region->counted_bytes = bytes;
	} else if (card_reserve(card, bytes - region->counted_bytes)) {
		region->counted_bytes = bytes;
	}
	card_unlock(card);
}

CUresult managed_give(CUdeviceptr pointer)
{
	struct region *region;

	space_take();
	region = region_at(pointer);
	if (!region || region->kind != REGION_MANAGED || region->base != pointer) {
		space_drop();
		return CUDA_ERROR_INVALID_VALUE;
	}
	set_resident(region, 0);
	mmap((void *)region->base, region->units * UNIT_BYTES, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	region->written = false;
	region_free(region);
	space_drop();
	return CUDA_SUCCESS;
}

/* To a full card nothing moves, as the real driver evicts rather than fail. */
static CUresult prefetch(CUdeviceptr pointer, size_t bytes, bool to_device, CUstream handle,
	enum stream_flavour flavour)
{
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	struct region *region;

	if (status != CUDA_SUCCESS)
		return status;
	if (stream->participant)
		return capture_refuse(stream);
	space_take();
	region = region_at(pointer);
	status = CUDA_ERROR_INVALID_VALUE;
	if (region && region->kind == REGION_MANAGED &&
		pointer - region->base + bytes <= region->bytes) {
		uint64_t span = (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;

		if (to_device)
			set_resident(region,
				span > region->counted_bytes ? span : region->counted_bytes);
		else
			set_resident(region,
				region->counted_bytes > span ? region->counted_bytes - span : 0);
		status = CUDA_SUCCESS;
	}
	space_drop();
	return status;
}

#define ON_CARD(location) ((location).type == CU_MEM_LOCATION_TYPE_DEVICE)
#define CPU (-1)

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice ordinal, CUstream stream)
{
	return prefetch(pointer, bytes, ordinal != CPU, stream, STREAM_LEGACY);
}

CUresult cuMemPrefetchAsync_ptsz(
	CUdeviceptr pointer, size_t bytes, CUdevice ordinal, CUstream stream)
{
	return prefetch(pointer, bytes, ordinal != CPU, stream, STREAM_PER_THREAD);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
	unsigned int flags, CUstream stream)
{
	REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
	return prefetch(pointer, bytes, ON_CARD(location), stream, STREAM_LEGACY);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
	unsigned int flags, CUstream stream)
{
	REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
	return prefetch(pointer, bytes, ON_CARD(location), stream, STREAM_PER_THREAD);
}

/* Advice is about where pages go by themselves, and here they go nowhere by themselves. */
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
