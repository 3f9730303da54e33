/* SPDX-License-Identifier: Apache-2.0
 *
 * cuCtxSetLimit. The memory behind a context's initial limits is part of the context's size; an
 * increase above the initial value is charged. What the device runtime's limits take is not
 * documented: it is in the measured overhead.
 *
 * Lock order: `setting`, then the driver's own locks: a limit must not change between querying it,
 * setting it, and querying it again.
 */
#include "context_limit.h"

#include <pthread.h>
#include <stdbool.h>

#include "cards.h"
#include "charge.h"
#include "context.h"
#include "quota/ledger.h"

static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER;

/* Limits that were set, by context and limit: the charge, and in `references` the initial value, in
 * a unit that divides every driver's values. */
static struct allocations limits;
#define VALUE_UNIT 16

struct change {
	struct charge charge; /* the current charge of the limit; 0 bytes at first */
	uint64_t handle;
	uint64_t initial;
	uint64_t times; /* how often a card holds what the limit names; 0: not charged */
};

static CUresult device_attribute(uint64_t *value, CUdevice_attribute attribute)
{
	CUdevice device;
	int found = 0;
	CUresult result = REAL(cuCtxGetDevice)(&device);

	if (result == CUDA_SUCCESS)
		result = REAL(cuDeviceGetAttribute)(&found, attribute, device);
	*value = found > 0 ? (uint64_t)found : 0;
	return result;
}

/* A stack for each thread that can be resident on the card (the CUDA C++ programming guide); the
 * heap and the FIFO once. */
static CUresult multiplicity(uint64_t *times, CUlimit limit)
{
	uint64_t multiprocessors, threads;

	*times = limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
	if (limit != CU_LIMIT_STACK_SIZE)
		return CUDA_SUCCESS;
	CUresult result =
		device_attribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	if (result == CUDA_SUCCESS)
		result = device_attribute(
			&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
	if (result == CUDA_SUCCESS)
		*times = multiprocessors * threads;
	return result;
}

/* The charge of a limit of `value`; more than any card has if it overflows. */
static uint64_t price(const struct change *change, uint64_t value)
{
	uint64_t bytes;

	if (value <= change->initial)
		return 0;
	return __builtin_mul_overflow(value - change->initial, change->times, &bytes) ? UINT64_MAX
										      : bytes;
}

/* The record of a limit of the current context. */
static CUresult change_begin(struct change *change, CUlimit limit)
{
	CUcontext current;
	size_t value;
	struct allocation entry;
	CUresult result = REAL(cuCtxGetCurrent)(&current);

	if (result == CUDA_SUCCESS)
		result = REAL(cuCtxGetLimit)(&value, limit);
	if (result == CUDA_SUCCESS)
		result = card_current(&change->charge.card);
	if (result == CUDA_SUCCESS)
		result = multiplicity(&change->times, limit);
	if (result != CUDA_SUCCESS)
		return result;
	change->charge.kind = GPUSHARE_KIND_CONTEXT_LIMIT;
	change->charge.bytes = 0;
	change->charge.context = context_owner();
	change->initial = value;
	/* A context's address plus the limit: the object is larger than that. */
	change->handle = (uintptr_t)current + (uint64_t)limit;
	if (allocations_take(&limits, change->handle, &entry)) {
		change->charge.bytes = entry.bytes;
		change->initial = (uint64_t)entry.references * VALUE_UNIT;
	}
	return CUDA_SUCCESS;
}

/* From the current charge to `bytes`; the driver has already allocated the difference. */
static void settle(struct change *change, uint64_t bytes)
{
	struct charge *charge = &change->charge;
	struct allocation stale;

	if (bytes > charge->bytes)
		ledger_count(charge->card, charge->kind, bytes - charge->bytes);
	else if (bytes < charge->bytes)
		ledger_release(charge->card, charge->kind, charge->bytes - bytes);
	const struct allocation entry = {.handle = change->handle,
		.bytes = bytes,
		.owner = charge->context,
		.card = (uint16_t)charge->card,
		.kind = (uint16_t)charge->kind,
		.references = (uint32_t)(change->initial / VALUE_UNIT)};
	allocations_add(&limits, &entry, &stale);
}

static CUresult limit_set(CUlimit limit, size_t value)
{
	struct change change;
	size_t now;
	CUresult result = change_begin(&change, limit);

	if (result != CUDA_SUCCESS || change.times == 0)
		return REAL(cuCtxSetLimit)(limit, value);
	const uint64_t before = change.charge.bytes, wanted = price(&change, value);
	if (wanted > before &&
		!ledger_reserve(change.charge.card, GPUSHARE_KIND_CONTEXT_LIMIT, wanted - before)) {
		settle(&change, before);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (wanted > before)
		change.charge.bytes = wanted;
	result = wanted > before ? RETRY_ON_OOM(change.charge.card, wanted - before,
					   REAL(cuCtxSetLimit)(limit, value))
				 : REAL(cuCtxSetLimit)(limit, value);
	/* The driver rounds, or sets less than requested. */
	if (result != CUDA_SUCCESS)
		settle(&change, before);
	else if (REAL(cuCtxGetLimit)(&now, limit) == CUDA_SUCCESS)
		settle(&change, price(&change, now));
	else
		settle(&change, wanted);
	return result;
}

CUDA(cuCtxSetLimit, (CUlimit limit, size_t value))
{
	pthread_mutex_lock(&setting);
	CUresult result = limit_set(limit, value);
	pthread_mutex_unlock(&setting);
	return result;
}

struct ended {
	uint64_t context;
	unsigned card;
	uint64_t bytes;
};

static bool ends_with(const struct allocation *charged, void *which)
{
	struct ended *ended = which;

	if (charged->owner != ended->context || charged->card != ended->card)
		return false;
	ended->bytes += charged->bytes;
	return true;
}

void limits_end_context(uint64_t context, unsigned card)
{
	struct ended ended = {.context = context, .card = card};

	allocations_take_all(&limits, ends_with, &ended);
	if (ended.bytes)
		ledger_release(card, GPUSHARE_KIND_CONTEXT_LIMIT, ended.bytes);
}

void limits_after_fork_in_child(void)
{
	/* Reinitialized: it is held while the driver sets a limit, too long to be taken before a
	 * fork. */
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	setting = unlocked;
	allocations_forget(&limits);
}
