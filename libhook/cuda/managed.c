/* SPDX-License-Identifier: Apache-2.0
 *
 * Managed memory, charged in full where it was allocated and on each card that it was sent to,
 * until it is freed: its current location depends on the driver and the kernels. Memory that a
 * kernel on another card migrates by accessing it is charged only on its first card, and memory of
 * the host's own allocator is not charged on machines where cards may hold it. With
 * managed_limit_bytes in the grant, the ledger does not count so much of it against the quota.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "cards.h"
#include "charge.h"
#include "memory.h"
#include "quota/ledger.h"
#include "submit.h"

CUDA(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags))
{
	struct charge charge;
	CUdeviceptr returned = 0;

	if (!pointer)
		return REAL(cuMemAllocManaged)(pointer, bytes, flags);
	CUresult result =
		charge_reserve_current(&charge, GPUSHARE_KIND_MANAGED, linear_bytes(bytes));

	if (result != CUDA_SUCCESS)
		return result;
	result = CHARGED(charge, REAL(cuMemAllocManaged)(&returned, bytes, flags));
	result = charge_settle(&charge, result, &returned);
	if (result == CUDA_SUCCESS)
		*pointer = returned;
	return result;
}

/* A buffer that was charged on one more card. */
struct arrival {
	CUdeviceptr buffer; /* 0: nothing was charged */
	unsigned card;
};

/* Charge the buffer that contains `pointer` on `card`, unless it is charged there already. */
static CUresult arrive(struct arrival *arrival, CUdeviceptr pointer, unsigned card)
{
	struct allocation buffer;

	*arrival = (struct arrival){0};
	if (!allocations_find_at(&buffers, pointer, &buffer) ||
		buffer.kind != GPUSHARE_KIND_MANAGED || buffer.card == card ||
		buffer.references & CHARGE_ALSO_ON(card))
		return CUDA_SUCCESS;
	if (!ledger_reserve(card, GPUSHARE_KIND_MANAGED, buffer.bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Another thread may have sent it to the same card by now. */
	if (allocations_mark(&buffers, buffer.handle, CHARGE_ALSO_ON(card), 0, &buffer) &&
		!(buffer.references & CHARGE_ALSO_ON(card)))
		*arrival = (struct arrival){buffer.handle, card};
	else
		ledger_release(card, GPUSHARE_KIND_MANAGED, buffer.bytes);
	return CUDA_SUCCESS;
}

/* The driver did not send it. */
static void withdraw(const struct arrival *arrival)
{
	struct allocation buffer;

	if (arrival->buffer && allocations_mark(&buffers, arrival->buffer, 0,
				       CHARGE_ALSO_ON(arrival->card), &buffer))
		ledger_release(arrival->card, GPUSHARE_KIND_MANAGED, buffer.bytes);
}

static CUresult arrive_at(
	struct arrival *arrival, CUdeviceptr pointer, const CUmemLocation *location)
{
	unsigned card;

	*arrival = (struct arrival){0};
	/* The driver refuses a missing location. */
	if (location->type == CU_MEM_LOCATION_TYPE_INVALID || location_is_host(location))
		return CUDA_SUCCESS;
	CUresult result = card_of_location(&card, location);
	return result == CUDA_SUCCESS ? arrive(arrival, pointer, card) : result;
}

/* The location as older forms state it: a device, or CU_DEVICE_CPU. */
static CUmemLocation place(CUdevice device)
{
	return device == -1 ? (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}
			    : (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static CUresult settle(const struct arrival *arrival, CUresult result)
{
	if (result != CUDA_SUCCESS)
		withdraw(arrival);
	return result;
}

/* Passes the gate, calls `call`, and settles what arrived by its result. */
#define FETCH(symbol, moved_bytes, null_stream, settle_call, arrived, call)                        \
	struct gate_work work = {.kind = GATE_COPY,                                                \
		.what = &real_##symbol,                                                            \
		.size = (moved_bytes),                                                             \
		.stream = stream,                                                                  \
		.per_thread = (null_stream) == NULL_IS_PER_THREAD};                                \
	const bool counted = !gate_is_open() && submit_enter(&work);                               \
	return settle_call(arrived, submit_leave(&work, counted, call))

#define PREFETCH(symbol, null_stream)                                                              \
	CUDA(symbol, (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream))        \
	{                                                                                          \
		CUmemLocation location = place(device);                                            \
		struct arrival arrival;                                                            \
		CUresult result = arrive_at(&arrival, pointer, &location);                         \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		FETCH(symbol, bytes, null_stream, settle, &arrival,                                \
			REAL(symbol)(pointer, bytes, device, stream));                             \
	}

PREFETCH(cuMemPrefetchAsync, NULL_IS_LEGACY)
PREFETCH(cuMemPrefetchAsync_ptsz, NULL_IS_PER_THREAD)

#define PREFETCH_V2(symbol, null_stream)                                                           \
	CUDA(symbol, (CUdeviceptr pointer, size_t bytes, CUmemLocation location,                   \
			     unsigned int flags, CUstream stream))                                 \
	{                                                                                          \
		struct arrival arrival;                                                            \
		CUresult result = arrive_at(&arrival, pointer, &location);                         \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		FETCH(symbol, bytes, null_stream, settle, &arrival,                                \
			REAL(symbol)(pointer, bytes, location, flags, stream));                    \
	}

PREFETCH_V2(cuMemPrefetchAsync_v2, NULL_IS_LEGACY)
PREFETCH_V2(cuMemPrefetchAsync_v2_ptsz, NULL_IS_PER_THREAD)

/* Other kinds of advice move nothing. */
static CUresult heed(struct arrival *arrival, CUdeviceptr pointer, CUmem_advise advice,
	const CUmemLocation *location)
{
	*arrival = (struct arrival){0};
	return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION
		       ? arrive_at(arrival, pointer, location)
		       : CUDA_SUCCESS;
}

CUDA(cuMemAdvise, (CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device))
{
	CUmemLocation location = place(device);
	struct arrival arrival;
	CUresult result = heed(&arrival, pointer, advice, &location);

	if (result != CUDA_SUCCESS)
		return result;
	return settle(&arrival, REAL(cuMemAdvise)(pointer, bytes, advice, device));
}

CUDA(cuMemAdvise_v2,
	(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location))
{
	struct arrival arrival;
	CUresult result = heed(&arrival, pointer, advice, &location);

	if (result != CUDA_SUCCESS)
		return result;
	return settle(&arrival, REAL(cuMemAdvise_v2)(pointer, bytes, advice, location));
}

/* A batch of ranges; location n applies to the ranges from starts[n] up to starts[n + 1]. */
struct batch {
	CUdeviceptr *pointers;
	size_t count;
	CUmemLocation *locations;
	size_t *starts;
	size_t location_count;
	struct arrival *arrivals;
};

static void batch_withdraw(struct batch *batch, size_t count)
{
	while (count-- > 0)
		withdraw(&batch->arrivals[count]);
	free(batch->arrivals);
}

static CUresult batch_arrive(struct batch *batch)
{
	size_t location = 0;

	/* The driver refuses missing arguments. */
	if (!batch->pointers || !batch->locations || !batch->starts || batch->location_count == 0)
		batch->count = 0;
	batch->arrivals = calloc(batch->count + 1, sizeof(*batch->arrivals));
	if (!batch->arrivals)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < batch->count; i++) {
		while (location + 1 < batch->location_count && batch->starts[location + 1] <= i)
			location++;
		CUresult result = arrive_at(
			&batch->arrivals[i], batch->pointers[i], &batch->locations[location]);
		if (result != CUDA_SUCCESS) {
			batch_withdraw(batch, i);
			return result;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult batch_settle(struct batch *batch, CUresult result)
{
	batch_withdraw(batch, result == CUDA_SUCCESS ? 0 : batch->count);
	return result;
}

static uint64_t batch_bytes(const size_t *bytes, size_t count)
{
	uint64_t sum = 0;

	for (size_t i = 0; bytes && i < count; i++)
		sum += bytes[i];
	return sum;
}

#define PREFETCH_BATCH(symbol, null_stream)                                                        \
	CUDA(symbol, (CUdeviceptr * pointers, size_t *bytes, size_t count,                         \
			     CUmemLocation *locations, size_t *starts, size_t location_count,      \
			     unsigned long long flags, CUstream stream))                           \
	{                                                                                          \
		struct batch batch = {pointers, count, locations, starts, location_count, NULL};   \
		CUresult result = batch_arrive(&batch);                                            \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		FETCH(symbol, batch_bytes(bytes, count), null_stream, batch_settle, &batch,        \
			REAL(symbol)(pointers, bytes, count, locations, starts, location_count,    \
				flags, stream));                                                   \
	}

PREFETCH_BATCH(cuMemPrefetchBatchAsync, NULL_IS_LEGACY)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz, NULL_IS_PER_THREAD)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync, NULL_IS_LEGACY)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz, NULL_IS_PER_THREAD)
