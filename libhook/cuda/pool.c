/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `making`, then `books` of backing.c.
 */
#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "cards.h"
#include "channel/log.h"
#include "quota/ledger.h"

struct pool host_pool, imported_pool;

static struct allocations handles; /* owner: the struct pool */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static const struct pool *pool_of(const struct backing *backing)
{
	return (const struct pool *)(const void *)backing;
}

static bool pool_held(const struct backing *backing, uint64_t *bytes)
{
	const struct pool *pool = pool_of(backing);
	uint64_t live = atomic_load(&backing->live);

	/* Its handle is gone. The driver releases what the pool held with the last of its memory.
	 */
	if (atomic_load(&pool->ended)) {
		*bytes = live ? atomic_load(&backing->charged) : 0;
		return true;
	}
	if (REAL(cuMemPoolGetAttribute)(
		    pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) != CUDA_SUCCESS)
		return false;
	/* Managed memory is charged as requested, wherever it is: it may move to the card. */
	if (backing->kind == GPUSHARE_KIND_MANAGED && *bytes < live)
		*bytes = live;
	return true;
}

static void pool_trim(struct backing *backing)
{
	const struct pool *pool = pool_of(backing);

	if (!atomic_load(&pool->ended))
		REAL(cuMemPoolTrimTo)(pool->handle, 0);
}

static bool pool_is_over(const struct backing *backing)
{
	return atomic_load(&pool_of(backing)->ended);
}

struct ended {
	const struct backing *backing;
	uint64_t bytes, exported_bytes;
};

static bool is_of_pool(const struct allocation *allocation, void *which)
{
	struct ended *ended = which;

	if (allocation->kind != GPUSHARE_KIND_POOL ||
		allocation->owner != (uintptr_t)ended->backing)
		return false;
	ended->bytes += allocation->bytes;
	if (allocation->references & CHARGE_EXPORTED)
		ended->exported_bytes += allocation->bytes;
	return true;
}

static void pool_emptied(struct backing *backing)
{
	struct ended ended = {.backing = backing};

	allocations_take_all(&buffers, is_of_pool, &ended);
	ledger_unexport(backing->card, ended.exported_bytes);
	atomic_fetch_sub(&backing->live, ended.bytes);
}

static const struct backing_calls pool_calls = {
	.held = pool_held, .trim = pool_trim, .emptied = pool_emptied, .is_over = pool_is_over};

struct pool *pool_known(CUmemoryPool handle)
{
	struct allocation entry;

	return allocations_find(&handles, (uintptr_t)handle, &entry) ? (struct pool *)entry.owner
								     : NULL;
}

void pool_remember(CUmemoryPool handle, struct pool *pool)
{
	struct allocation stale;
	struct allocation entry = {.handle = (uintptr_t)handle, .owner = (uintptr_t)pool};

	if (!allocations_add(&handles, &entry, &stale))
		log_line(LOG_WARNING, "out of memory: cannot track a pool");
}

void pool_forget(CUmemoryPool handle)
{
	struct allocation entry;

	allocations_take(&handles, (uintptr_t)handle, &entry);
}

/* Frees that streams have not reached yet may hold some of it even if nothing is in use. */
CUresult pool_destroy(struct pool *pool)
{
	unsigned card = pool->backing.card;

	backings_hold();
	bool is_empty = atomic_load(&pool->backing.charged) == 0;
	CUresult result = REAL(cuMemPoolDestroy)(pool->handle);
	if (result == CUDA_SUCCESS) {
		atomic_store(&pool->backing.threshold, 0);
		atomic_store(&pool->ended, true);
	}
	backings_let_go();
	/* From here on, another thread may have freed an empty one. */
	if (result == CUDA_SUCCESS && is_empty)
		backings_look(card);
	else if (result == CUDA_SUCCESS)
		atomic_store(&backings_may_shrink, true);
	return result;
}

static CUresult pool_new(CUmemoryPool handle, enum gpushare_kind kind, unsigned card)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	uint64_t threshold = 0;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	pool->handle = handle;
	pool->backing.calls = &pool_calls;
	pool->backing.kind = kind;
	pool->backing.card = card;
	atomic_store(&pool->backing.threshold, threshold);
	backing_begin(&pool->backing);
	pool_remember(handle, pool);
	return CUDA_SUCCESS;
}

/* Managed memory without a card of its own is charged on the current one, like
 * cuMemAllocManaged's. */
static CUresult place(CUmemoryPool handle, CUmemAllocationType type, const CUmemLocation *location)
{
	bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
	unsigned card;

	if (location_is_host(location) && !managed) {
		pool_remember(handle, &host_pool);
		return CUDA_SUCCESS;
	}
	CUresult result = card_of_location(&card, location);
	return result == CUDA_SUCCESS
		       ? pool_new(
				 handle, managed ? GPUSHARE_KIND_MANAGED : GPUSHARE_KIND_POOL, card)
		       : result;
}

/* Newer drivers of CUDA 13 report it. With older ones, a pool that the program neither created nor
 * looked up by location is a device's default pool. */
static CUresult pool_identify(CUmemoryPool handle, CUdevice device)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED;
	CUmemoryPool pool;
	int count = 0;

	if (REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &location.type) ==
			CUDA_SUCCESS &&
		REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &location.id) ==
			CUDA_SUCCESS &&
		REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) ==
			CUDA_SUCCESS)
		return place(handle, type, &location);
	REAL(cuDeviceGetCount)(&count);
	for (CUdevice other = 0; other < count; other++)
		if (REAL(cuDeviceGetDefaultMemPool)(&pool, other) == CUDA_SUCCESS && pool == handle)
			location.id = other;
	return place(handle, type, &location);
}

CUresult pool_place(CUmemoryPool handle, CUmemAllocationType type, const CUmemLocation *location)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&making);
	if (!pool_known(handle))
		result = place(handle, type, location);
	pthread_mutex_unlock(&making);
	return result;
}

CUresult pool_find(struct pool **pool, CUmemoryPool handle, CUdevice device)
{
	CUresult result = CUDA_SUCCESS;

	*pool = pool_known(handle);
	if (*pool)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&making);
	if (!pool_known(handle))
		result = pool_identify(handle, device);
	*pool = pool_known(handle);
	pthread_mutex_unlock(&making);
	if (result == CUDA_SUCCESS && !*pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

void pool_freed(const struct allocation *allocation)
{
	struct pool *pool = (struct pool *)allocation->owner;

	if (pool == &imported_pool) {
		ledger_unimport(allocation->card, allocation->bytes);
		return;
	}
	backing_freed(&pool->backing, allocation->bytes);
}

void pools_after_fork_in_child(void)
{
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	allocations_forget(&handles);
	making = unlocked; /* another thread may have held the lock */
}
