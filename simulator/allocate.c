/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry points that allocate and free device memory, and report how much there is.
 */
#include "driver.h"

#include "clock.h"
#include "memory.h"

#define LOOK_FOR_DEAD_NS UINT64_C(1000000)

#define PITCH_BYTES 512

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && bytes > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE_NO_CAPTURE();
	REQUIRE_NO_FAULT(context->card);
	result = memory_take(context, bytes, pointer);
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	/* Memory that pools retain for reuse is available to others. */
	pools_trim();
	return memory_take(context, bytes, pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height,
	unsigned int element_bytes)
{
	size_t row = (width_bytes + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;

	REQUIRE(pitch && width_bytes > 0 && height > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(element_bytes == 4 || element_bytes == 8 || element_bytes == 16,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(row >= width_bytes && height <= SIZE_MAX / row, CUDA_ERROR_OUT_OF_MEMORY);
	*pitch = row;
	return cuMemAlloc_v2(pointer, row * height);
}

/* The pointer identifies its context; no context needs to be current, which programs that free
 * memory while they exit rely on. */
CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct extent extent;
	CUcontext context;

	REQUIRE_DRIVER();
	if (pointer == 0)
		return CUDA_SUCCESS;
	REQUIRE_NO_CAPTURE();
	REQUIRE(memory_find(pointer, &extent) && extent.base == pointer, CUDA_ERROR_INVALID_VALUE);
	context = extent.region->context;
	REQUIRE(context, CUDA_ERROR_INVALID_VALUE); /* a reservation */
	/* The card may still be using it: freeing waits, like the real driver. */
	if (!queue_reached(context, atomic_load(&context->queue->submitted_ns)))
		context_drain(context);
	if (extent.region->kind == REGION_MANAGED)
		return managed_give(pointer);
	if (extent.region->kind == REGION_GRAPH)
		return graph_memory_give(pointer);
	if (extent.region->pool)
		return pool_give(pointer);
	return memory_give(pointer);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{

	REQUIRE_CONTEXT(context);
	REQUIRE(free_bytes && total_bytes, CUDA_ERROR_INVALID_VALUE);
	if (clock_ns() - context->card->looked_ns > LOOK_FOR_DEAD_NS) {
		card_lock(context->card);
		card_reap(context->card);
		card_unlock(context->card);
	}
	*total_bytes = card_usable_bytes(context->card);
	*free_bytes = *total_bytes - atomic_load(&context->card->used_bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
	struct extent extent;

	REQUIRE_CONTEXT(context);
	REQUIRE(memory_find(pointer, &extent), CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = extent.base;
	if (bytes)
		*bytes = extent.bytes;
	return CUDA_SUCCESS;
}
