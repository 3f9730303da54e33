/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools as objects: creating them, which one is current, their attributes.
 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST SIM_CARDS /* the slot after the cards' */

struct latch pools_latch;
static _Atomic(CUmemoryPool) pools; /* written under the latch */
static _Atomic(CUmemoryPool) defaults[SIM_CARDS + 1], current[SIM_CARDS + 1];

bool pool_valid(CUmemoryPool pool)
{
	return pool && pool->kind == OBJECT_POOL;
}

CUmemoryPool pool_first(void)
{
	return pools;
}

CUmemoryPool pool_new(CUmemLocation location, CUmemAllocationHandleType handle_types)
{
	CUmemoryPool pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	*pool = (struct CUmemPoolHandle_st){.kind = OBJECT_POOL,
		.location = location,
		.handle_types = handle_types,
		.fd = -1,
		.reuse = {1, 1, 1}};
	if (pool_on_card(pool))
		pool->access[location.id] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	latch_take(&pools_latch);
	pool->next = pools;
	pools = pool;
	latch_drop(&pools_latch);
	return pool;
}

/* Where the pools of a location are stored: the host is one location. */
static CUresult place_of(const CUmemLocation *location, int *place)
{
	REQUIRE(location, CUDA_ERROR_INVALID_VALUE);
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		REQUIRE(device_valid(location->id), CUDA_ERROR_INVALID_DEVICE);
		*place = location->id;
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		*place = HOST;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult default_at(int place, CUmemoryPool *pool)
{
	const CUmemLocation location = {
		place == HOST ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
		place == HOST ? 0 : place};
	CUmemoryPool made;

	if (!defaults[place]) {
		made = pool_new(location, CU_MEM_HANDLE_TYPE_NONE);
		REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
		latch_take(&pools_latch);
		if (!defaults[place])
			defaults[place] = made;
		latch_drop(&pools_latch);
	}
	*pool = defaults[place];
	return CUDA_SUCCESS;
}

static bool is_default(CUmemoryPool pool)
{
	for (int place = 0; place <= HOST; place++) {
		if (defaults[place] == pool)
			return true;
	}
	return false;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	CUmemoryPool made;
	CUresult result;
	int place;

	REQUIRE_DRIVER();
	REQUIRE(pool && properties && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED,
		CUDA_ERROR_INVALID_VALUE);
	result = place_of(&properties->location, &place);
	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE ||
			properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		CUDA_ERROR_NOT_SUPPORTED);
	made = pool_new(properties->location, properties->handleTypes);
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	made->most_bytes = properties->maxSize;
	if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE && !pool_make_shareable(made)) {
		cuMemPoolDestroy(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pool = made;
	return CUDA_SUCCESS;
}

void pool_end(CUmemoryPool pool)
{
	if (pool_valid(pool) || pool->chunks || pool->fd < 0)
		return;
	close(pool->fd);
	pool->fd = -1;
}

/* Allocated memory stays, and returns to the card as it is freed. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && !is_default(pool), CUDA_ERROR_INVALID_VALUE);
	latch_take(&pools_latch);
	pool->release_threshold = 0;
	pool_trim(pool, 0);
	pool->kind = 0;
	for (int place = 0; place <= HOST; place++) {
		if (current[place] == pool)
			current[place] = NULL;
	}
	pool_end(pool);
	latch_drop(&pools_latch);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes_to_keep)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool), CUDA_ERROR_INVALID_VALUE);
	latch_take(&pools_latch);
	pool_trim(pool, bytes_to_keep);
	latch_drop(&pools_latch);
	return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(
	CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult result;
	int place;

	REQUIRE_DRIVER();
	REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_NOT_SUPPORTED);
	result = place_of(location, &place);
	return result == CUDA_SUCCESS ? default_at(place, pool) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult result;
	int place;

	REQUIRE_DRIVER();
	REQUIRE(pool, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_NOT_SUPPORTED);
	result = place_of(location, &place);
	if (result != CUDA_SUCCESS)
		return result;
	*pool = current[place];
	return *pool ? CUDA_SUCCESS : default_at(place, pool);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult result;
	int place, own;

	REQUIRE_DRIVER();
	REQUIRE(type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_NOT_SUPPORTED);
	result = place_of(location, &place);
	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(pool_valid(pool) && !pool->imported &&
			place_of(&pool->location, &own) == CUDA_SUCCESS && own == place,
		CUDA_ERROR_INVALID_VALUE);
	current[place] = pool;
	return CUDA_SUCCESS;
}

static CUmemLocation on_device(CUdevice ordinal)
{
	return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
	CUmemLocation location = on_device(ordinal);

	return cuMemGetDefaultMemPool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
	CUmemLocation location = on_device(ordinal);

	return cuMemGetMemPool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
	CUmemLocation location = on_device(ordinal);

	return cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

static CUresult attribute_read(
	const struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute, void *value)
{
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

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && value, CUDA_ERROR_INVALID_VALUE);
	latch_take(&pools_latch);
	result = attribute_read(pool, attribute, value);
	latch_drop(&pools_latch);
	return result;
}

static CUresult attribute_write(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value)
{
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

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && value, CUDA_ERROR_INVALID_VALUE);
	latch_take(&pools_latch);
	result = attribute_write(pool, attribute, value);
	latch_drop(&pools_latch);
	return result;
}

/* A card always has access to its own pool; another one if it can access the pool's card. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	REQUIRE_DRIVER();
	REQUIRE(pool_valid(pool) && (access || count == 0), CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		CUdevice card = access[i].location.id;
		int can = 1;

		REQUIRE(access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE,
			CUDA_ERROR_INVALID_VALUE);
		REQUIRE(device_valid(card), CUDA_ERROR_INVALID_DEVICE);
		if (pool_on_card(pool) && card == pool->location.id)
			REQUIRE(access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
				CUDA_ERROR_INVALID_VALUE);
		else if (pool_on_card(pool))
			cuDeviceCanAccessPeer(&can, card, pool->location.id);
		REQUIRE(can, CUDA_ERROR_INVALID_DEVICE);
		pool->access[card] = access[i].flags;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	REQUIRE_DRIVER();
	REQUIRE(flags && pool_valid(pool) && location &&
			location->type == CU_MEM_LOCATION_TYPE_DEVICE,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(location->id), CUDA_ERROR_INVALID_DEVICE);
	*flags = pool->access[location->id];
	return CUDA_SUCCESS;
}
