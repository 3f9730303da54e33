/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocating from pools, and freeing into them. In a captured stream, the calls make nodes of a
 * graph, and graph_memory.c charges what those take.
 */
#include <stdbool.h>

#include "cards.h"
#include "memory.h"
#include "oom_retry.h"
#include "pool.h"
#include "stream.h"

/* Less than the smallest observed growth of a pool: what is handed out between two queries then
 * needs no more than one growth. */
#define LOOK_BYTES (UINT64_C(2) << 20)

/* One allocation, from before the driver is called. */
struct taking {
	struct pool *pool;
	uint64_t bytes;
	uint64_t reserved;
	bool is_looked_at; /* afterwards */
};

/* The amount by which `live` exceeds what the pool is known to hold, or will hold by other
 * reservations; but never more than this allocation. */
static uint64_t growth(const struct backing *backing, uint64_t live, uint64_t bytes)
{
	uint64_t covered = atomic_load(&backing->charged) + atomic_load(&backing->outstanding);

	if (live <= covered)
		return 0;
	return live - covered < bytes ? live - covered : bytes;
}

static bool is_to_be_looked_at(const struct taking *taking)
{
	struct pool *pool = taking->pool;
	uint64_t unseen =
		atomic_fetch_add_explicit(&pool->unseen, taking->bytes, memory_order_relaxed);

	if (taking->reserved == 0 && unseen + taking->bytes < LOOK_BYTES)
		return false;
	atomic_store_explicit(&pool->unseen, 0, memory_order_relaxed);
	return true;
}

static CUresult reserve(struct taking *taking, size_t bytes)
{
	struct backing *backing = &taking->pool->backing;

	if (!pool_is_charged(taking->pool))
		return CUDA_SUCCESS;
	/* No quota is larger, and no sum overflows. */
	taking->bytes = bytes < GPUSHARE_PENDING_BEGIN
				? (bytes + SHARED_GRANULE_BYTES - 1) & ~(SHARED_GRANULE_BYTES - 1)
				: GPUSHARE_PENDING_BEGIN;
	uint64_t live = atomic_fetch_add(&backing->live, taking->bytes) + taking->bytes;
	taking->reserved = growth(backing, live, taking->bytes);
	taking->is_looked_at = is_to_be_looked_at(taking);
	if (!taking->is_looked_at || backing_reserve(backing, taking->reserved))
		return CUDA_SUCCESS;
	atomic_fetch_sub(&backing->live, taking->bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* From the pool of this handle; NULL is the current one of the stream's device. */
static CUresult take(struct taking *taking, size_t bytes, CUmemoryPool handle, CUstream stream)
{
	CUdevice device;
	CUresult result = device_of_stream(&device, stream);

	*taking = (struct taking){0};
	if (result == CUDA_SUCCESS && !handle)
		result = REAL(cuDeviceGetMemPool)(&handle, device);
	if (result == CUDA_SUCCESS)
		result = pool_find(&taking->pool, handle, device);
	return result == CUDA_SUCCESS ? reserve(taking, bytes) : result;
}

/* Make the driver release what it took. It can do so only when the stream has passed the free,
 * which comes after everything that the stream still has to do. */
static void undo(
	struct taking *taking, CUdeviceptr pointer, CUstream stream, enum null_stream null_stream)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	const struct pool *pool = taking->pool;
	const struct backing *backing = &pool->backing;
	uint64_t keep = atomic_load(&backing->charged) + atomic_load(&backing->outstanding) -
			taking->reserved;
	uint64_t held;

	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (null_stream == NULL_IS_LEGACY)
		REAL(cuMemFreeAsync)(pointer, stream);
	else
		REAL(cuMemFreeAsync_ptsz)(pointer, stream);
	REAL(cuMemPoolTrimTo)(pool->handle, keep);
	if (backing->calls->held(backing, &held) && held > keep) {
		stream_wait(stream, null_stream);
		REAL(cuMemPoolTrimTo)(pool->handle, keep);
	}
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* Withdraw what was not allocated, or not kept. */
static void withdraw(const struct taking *taking)
{
	struct backing *backing = &taking->pool->backing;

	atomic_fetch_sub(&backing->live, taking->bytes);
	if (taking->is_looked_at)
		backing_count(backing, taking->reserved);
}

static void note(const struct taking *taking, CUdeviceptr pointer)
{
	const struct allocation allocation = {.handle = pointer,
		.bytes = taking->bytes,
		.owner = (uintptr_t)taking->pool,
		.card = (uint16_t)taking->pool->backing.card,
		.kind = GPUSHARE_KIND_POOL};

	charge_note(&allocation);
}

static CUresult taken(struct taking *taking, CUresult result, CUdeviceptr returned, CUstream stream,
	enum null_stream null_stream)
{
	if (!pool_is_charged(taking->pool))
		return result;
	if (result != CUDA_SUCCESS) {
		withdraw(taking);
		/* Before it reports that the card is full, the driver reclaims what pools retain.
		 */
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			backings_look(taking->pool->backing.card);
		return result;
	}
	if (taking->is_looked_at && !backing_settle(&taking->pool->backing, &taking->reserved)) {
		undo(taking, returned, stream, null_stream);
		withdraw(taking);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	note(taking, returned);
	return CUDA_SUCCESS;
}

/* Retried if the pool is on a card. */
#define TAKEN(taking, call) RETRY_ON_OOM(card_of(&(taking)), (taking).bytes, (call))

static unsigned card_of(const struct taking *taking)
{
	return pool_is_charged(taking->pool) ? taking->pool->backing.card : OOM_RETRY_NO_CARD;
}

/* From `pool`; then come the arguments behind the pointer. */
#define ALLOCATE(symbol, parameters, pool, null_stream, ...)                                       \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		struct taking taking;                                                              \
		CUdeviceptr returned = 0;                                                          \
		if (!pointer || stream_is_captured(stream, null_stream))                           \
			return REAL(symbol)(pointer, __VA_ARGS__);                                 \
		CUresult result = take(&taking, bytes, pool, stream);                              \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = TAKEN(taking, REAL(symbol)(&returned, __VA_ARGS__));                      \
		result = taken(&taking, result, returned, stream, null_stream);                    \
		if (result == CUDA_SUCCESS)                                                        \
			*pointer = returned;                                                       \
		return result;                                                                     \
	}

#define FROM_CURRENT(symbol, null_stream)                                                          \
	ALLOCATE(symbol, (CUdeviceptr * pointer, size_t bytes, CUstream stream), NULL,             \
		null_stream, bytes, stream)
#define FROM_POOL(symbol, null_stream)                                                             \
	ALLOCATE(symbol,                                                                           \
		(CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream), pool,   \
		null_stream, bytes, pool, stream)

FROM_CURRENT(cuMemAllocAsync, NULL_IS_LEGACY)
FROM_CURRENT(cuMemAllocAsync_ptsz, NULL_IS_PER_THREAD)
FROM_POOL(cuMemAllocFromPoolAsync, NULL_IS_LEGACY)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, NULL_IS_PER_THREAD)

#define FREE(symbol, null_stream)                                                                  \
	CUDA(symbol, (CUdeviceptr pointer, CUstream stream))                                       \
	{                                                                                          \
		if (stream_is_captured(stream, null_stream))                                       \
			return REAL(symbol)(pointer, stream);                                      \
		return CHARGE_FREE(pointer, REAL(symbol)(pointer, stream));                        \
	}

FREE(cuMemFreeAsync, NULL_IS_LEGACY)
FREE(cuMemFreeAsync_ptsz, NULL_IS_PER_THREAD)
