/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's changes to its pools: creation, trimming, destruction.
 */
#include "pool.h"

CUDA(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties))
{
	CUmemoryPool returned = NULL;

	if (!pool || !properties)
		return REAL(cuMemPoolCreate)(pool, properties);
	const CUmemPoolProps own = *properties;
	CUresult result = REAL(cuMemPoolCreate)(&returned, &own);
	if (result != CUDA_SUCCESS)
		return result;
	pool_forget(returned);
	result = pool_place(returned, own.allocType, &own.location);
	if (result == CUDA_SUCCESS)
		*pool = returned;
	else
		REAL(cuMemPoolDestroy)(returned);
	return result;
}

static CUresult pool_placed(CUmemoryPool *pool, CUmemoryPool returned, CUmemAllocationType type,
	const CUmemLocation *location)
{
	CUresult result = pool_place(returned, type, location);

	if (result == CUDA_SUCCESS)
		*pool = returned;
	return result;
}

/* Since CUDA 13, the host has pools that the program did not create, too. */
#define POOL_AT(symbol)                                                                            \
	CUDA(symbol, (CUmemoryPool * pool, CUmemLocation * location, CUmemAllocationType type))    \
	{                                                                                          \
		if (!pool || !location)                                                            \
			return REAL(symbol)(pool, location, type);                                 \
		CUmemoryPool returned = NULL;                                                      \
		CUmemLocation own = *location;                                                     \
		CUresult result = REAL(symbol)(&returned, &own, type);                             \
		return result == CUDA_SUCCESS ? pool_placed(pool, returned, type, &own) : result;  \
	}

POOL_AT(cuMemGetDefaultMemPool)
POOL_AT(cuMemGetMemPool)

/* The last chance to query the driver about the memory that remains, before the handle is gone. */
CUDA(cuMemPoolDestroy, (CUmemoryPool handle))
{
	struct pool *pool = pool_known(handle);

	if (!pool)
		return REAL(cuMemPoolDestroy)(handle);
	if (pool_is_charged(pool)) {
		REAL(cuMemPoolTrimTo)(handle, 0);
		backing_look(&pool->backing);
	}
	pool_forget(handle);
	CUresult result =
		pool_is_charged(pool) ? pool_destroy(pool) : REAL(cuMemPoolDestroy)(handle);
	if (result != CUDA_SUCCESS)
		pool_remember(handle, pool);
	return result;
}

CUDA(cuMemPoolTrimTo, (CUmemoryPool handle, size_t bytes_to_keep))
{
	struct pool *pool = pool_known(handle);
	CUresult result = REAL(cuMemPoolTrimTo)(handle, bytes_to_keep);

	if (pool && pool_is_charged(pool))
		backing_look(&pool->backing);
	return result;
}

/* A lower threshold lets the driver release memory at the program's next synchronization. */
CUDA(cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value))
{
	struct pool *pool = pool_known(handle);
	CUresult result = REAL(cuMemPoolSetAttribute)(handle, attribute, value);

	if (result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && pool &&
		pool_is_charged(pool)) {
		atomic_store(&pool->backing.threshold, *(const uint64_t *)value);
		atomic_store(&backings_may_shrink, true);
	}
	return result;
}
