/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program does with its pools: makes them, trims them, ends them.
 */
#include "pool.h"

CUDA(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties))
{
	CUresult result = REAL(cuMemPoolCreate)(pool, properties);

	if (result != CUDA_SUCCESS)
		return result;
	pool_forget(*pool);
	result = pool_place(*pool, properties->allocType, &properties->location);
	if (result != CUDA_SUCCESS)
		REAL(cuMemPoolDestroy)(*pool);
	return result;
}

/* Since CUDA 13 the host has pools that the program did not make, too. */
CUDA(cuMemGetDefaultMemPool,
	(CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type))
{
	CUresult result = REAL(cuMemGetDefaultMemPool)(pool, location, type);

	return result == CUDA_SUCCESS ? pool_place(*pool, type, location) : result;
}

CUDA(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type))
{
	CUresult result = REAL(cuMemGetMemPool)(pool, location, type);

	return result == CUDA_SUCCESS ? pool_place(*pool, type, location) : result;
}

/* Of what lives on, the driver can be asked for the last time before its handle is gone. */
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

/* A lower threshold lets memory go when the program next waits. */
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
