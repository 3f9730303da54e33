/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools. What is freed into a pool stays the pool's, for the next allocation that it fits;
 * more than the release threshold goes back to the card when the program next waits for something.
 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

struct kept {
	struct region *region;
	struct kept *next;
};

struct CUmemPoolHandle_st {
	uint32_t kind;
	CUdevice device;
	CUcontext context; /* whose account the memory is on */
	uint64_t release_threshold;
	uint64_t reserved_bytes, reserved_high, used_bytes, used_high;
	int reuse[3];
	struct kept *kept;
	CUmemoryPool next;
};

static struct latch latch; /* before the space's */
static CUmemoryPool pools;
static CUmemoryPool defaults[SIM_CARDS], current[SIM_CARDS];

static bool pool_valid(CUmemoryPool pool)
{
	return pool && pool->kind == OBJECT_POOL;
}

static CUmemoryPool pool_new(CUdevice ordinal)
{
	CUmemoryPool pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->kind = OBJECT_POOL;
	pool->device = ordinal;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	latch_take(&latch);
	pool->next = pools;
	pools = pool;
	latch_drop(&latch);
	return pool;
}

static void raise(uint64_t *high, uint64_t value)
{
	if (*high < value)
		*high = value;
}

/* Give back what the pool keeps beyond `keep` bytes. */
static void trim(CUmemoryPool pool, uint64_t keep)
{
	while (pool->kept && pool->reserved_bytes > keep) {
		struct kept *kept = pool->kept;

		pool->reserved_bytes -= kept->region->counted_bytes;
		pool->kept = kept->next;
		kept->region->idle = false;
		memory_give(kept->region->base);
		free(kept);
	}
}

void pools_trim(void)
{
	if (!pools)
		return;
	latch_take(&latch);
	for (CUmemoryPool pool = pools; pool; pool = pool->next)
		trim(pool, pool->release_threshold);
	latch_drop(&latch);
}

void pools_forget_context(CUcontext context)
{
	latch_take(&latch);
	for (CUmemoryPool pool = pools; pool; pool = pool->next) {
		if (pool->context != context)
			continue;
		trim(pool, 0);
		pool->context = NULL;
		pool->reserved_bytes = pool->used_bytes = 0;
	}
	latch_drop(&latch);
}

/* A kept region of just as many units. */
static struct region *reuse(CUmemoryPool pool, size_t bytes)
{
	uint64_t units = (bytes + UNIT_BYTES - 1) / UNIT_BYTES;

	for (struct kept **link = &pool->kept; *link; link = &(*link)->next) {
		struct kept *kept = *link;
		struct region *region = kept->region;

		if (region->units != units)
			continue;
		*link = kept->next;
		free(kept);
		region->idle = false;
		region->bytes = bytes;
		return region;
	}
	return NULL;
}

/* With the latch held. */
static CUresult pool_take(CUmemoryPool pool, CUcontext context, size_t bytes, CUdeviceptr *pointer)
{
	struct region *region = reuse(pool, bytes);
	struct extent extent;
	CUresult result;

	if (region) {
		*pointer = region->base;
	} else {
		result = memory_take(context, bytes, pool, pointer);
		if (result == CUDA_ERROR_OUT_OF_MEMORY) {
			for (CUmemoryPool other = pools; other; other = other->next)
				trim(other, 0);
			result = memory_take(context, bytes, pool, pointer);
		}
		if (result != CUDA_SUCCESS)
			return result;
		memory_find(*pointer, &extent);
		region = extent.region;
		pool->reserved_bytes += region->counted_bytes;
		raise(&pool->reserved_high, pool->reserved_bytes);
	}
	pool->used_bytes += region->counted_bytes;
	raise(&pool->used_high, pool->used_bytes);
	return CUDA_SUCCESS;
}

CUresult pool_give(CUdeviceptr pointer)
{
	struct kept *kept = malloc(sizeof(*kept));
	struct extent extent;
	CUmemoryPool pool;

	REQUIRE(kept, CUDA_ERROR_OUT_OF_MEMORY);
	latch_take(&latch);
	if (!memory_find(pointer, &extent) || extent.base != pointer || !extent.region->pool) {
		latch_drop(&latch);
		free(kept);
		return CUDA_ERROR_INVALID_VALUE;
	}
	pool = extent.region->pool;
	extent.region->idle = true;
	*kept = (struct kept){extent.region, pool->kept};
	pool->kept = kept;
	pool->used_bytes -= extent.region->counted_bytes;
	latch_drop(&latch);
	return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream handle,
	enum stream_flavour flavour)
{
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	CUcontext context;

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(pointer && bytes > 0, CUDA_ERROR_INVALID_VALUE);
	if (!pool && cuDeviceGetMemPool(&pool, stream->context->device) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	REQUIRE(pool_valid(pool), CUDA_ERROR_INVALID_VALUE);
	latch_take(&latch);
	/* A pool's memory is on the account of the first context that used it. */
	if (!pool->context)
		pool->context = stream->context;
	context = pool->context;
	status = pool_take(pool, context, bytes, pointer);
	latch_drop(&latch);
	return status;
}

static CUresult release(CUdeviceptr pointer, CUstream handle, enum stream_flavour flavour)
{
	struct extent extent;
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
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

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	REQUIRE_DRIVER();
	REQUIRE(pool && properties, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(device_valid(properties->location.id), CUDA_ERROR_INVALID_DEVICE);
	*pool = pool_new(properties->location.id);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && pool != defaults[pool->device], CUDA_ERROR_INVALID_VALUE);
	latch_take(&latch);
	trim(pool, 0);
	/* What is still allocated is freed later and goes straight back: nothing is kept. */
	pool->release_threshold = 0;
	if (current[pool->device] == pool)
		current[pool->device] = NULL;
	latch_drop(&latch);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes_to_keep)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool), CUDA_ERROR_INVALID_VALUE);
	latch_take(&latch);
	trim(pool, bytes_to_keep);
	latch_drop(&latch);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
	CUmemoryPool made;

	REQUIRE_DRIVER();
	REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	if (!defaults[ordinal]) {
		made = pool_new(ordinal);
		REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
		latch_take(&latch);
		if (!defaults[ordinal])
			defaults[ordinal] = made;
		latch_drop(&latch);
	}
	*pool = defaults[ordinal];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
	REQUIRE_DRIVER();
	REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	*pool = current[ordinal];
	return *pool ? CUDA_SUCCESS : cuDeviceGetDefaultMemPool(pool, ordinal);
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(pool_valid(pool) && pool->device == ordinal, CUDA_ERROR_INVALID_VALUE);
	current[ordinal] = pool;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && value, CUDA_ERROR_INVALID_VALUE);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		memcpy(value, &pool->release_threshold, sizeof(uint64_t));
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		memcpy(value, &pool->reserved_bytes, sizeof(uint64_t));
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		memcpy(value, &pool->reserved_high, sizeof(uint64_t));
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		memcpy(value, &pool->used_bytes, sizeof(uint64_t));
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		memcpy(value, &pool->used_high, sizeof(uint64_t));
		break;
	default:
		REQUIRE(attribute >= 1 && attribute <= 3, CUDA_ERROR_INVALID_VALUE);
		memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
	}
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && value, CUDA_ERROR_INVALID_VALUE);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		memcpy(&pool->release_threshold, value, sizeof(uint64_t));
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		pool->reserved_high = pool->reserved_bytes; /* may only be set to 0: reset */
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		pool->used_high = pool->used_bytes;
		break;
	default:
		REQUIRE(attribute >= 1 && attribute <= 3, CUDA_ERROR_INVALID_VALUE);
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
	}
	return CUDA_SUCCESS;
}
