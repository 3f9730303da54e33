/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `primaries`, then the driver's own locks. It is held while the driver makes or ends a
 * primary context, which calls nobody back but this thread's own tools: hence recursive.
 */
#include "context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backing.h"
#include "cards.h"
#include "charge.h"
#include "external.h"
#include "ipc.h"
#include "quota/ledger.h"

static struct allocations created; /* by cuCtxCreate: handle and card */
static _Atomic unsigned created_count;

static pthread_mutex_t primaries = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct primary {
	bool is_counted;
	uint64_t bytes; /* its price when it was */
} primary[GPUSHARE_MAX_CARDS];

CUcontext context_owner(void)
{
	CUcontext current = NULL;

	/* Programs that only ever use the primary context are most; they need not ask. */
	if (atomic_load_explicit(&created_count, memory_order_acquire) == 0 ||
		REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		return NULL;
	struct allocation entry;
	return allocations_find(&created, (uintptr_t)current, &entry) ? current : NULL;
}

/* A context has ended, `card`'s primary one if NULL, and its memory with it. */
static void memory_end(CUcontext context, unsigned card)
{
	charge_end_context(context, card);
	ipc_end_context(context, card);
	external_end_context(context, card);
	backings_after_context(card);
}

static CUresult context_reserve(struct charge *charge, CUdevice device)
{
	CUresult result = card_of_device(&charge->card, device);

	if (result == CUDA_SUCCESS && !ledger_reserve_context(charge->card, &charge->bytes))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

static CUresult context_settle(
	const struct charge *charge, CUresult result, const CUcontext *context)
{
	struct allocation stale;

	if (result != CUDA_SUCCESS) {
		ledger_release_context(charge->card, charge->bytes);
		return result;
	}
	struct allocation entry = {.handle = (uintptr_t)*context,
		.bytes = charge->bytes,
		.card = (uint16_t)charge->card};
	if (allocations_add(&created, &entry, &stale))
		atomic_fetch_add(&created_count, 1);
	return result;
}

CUDA(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))
{
	struct charge charge;
	CUresult result = context_reserve(&charge, device);

	if (result != CUDA_SUCCESS)
		return result;
	return context_settle(&charge, REAL(cuCtxCreate)(context, flags, device), context);
}

CUDA(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))
{
	struct charge charge;
	CUresult result = context_reserve(&charge, device);

	if (result != CUDA_SUCCESS)
		return result;
	return context_settle(&charge, REAL(cuCtxCreate_v2)(context, flags, device), context);
}

CUDA(cuCtxCreate_v3, (CUcontext * context, CUexecAffinityParam *affinity, int affinity_count,
			     unsigned int flags, CUdevice device))
{
	struct charge charge;
	CUresult result = context_reserve(&charge, device);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuCtxCreate_v3)(context, affinity, affinity_count, flags, device);
	return context_settle(&charge, result, context);
}

CUDA(cuCtxCreate_v4,
	(CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device))
{
	struct charge charge;
	CUresult result = context_reserve(&charge, device);

	if (result != CUDA_SUCCESS)
		return result;
	return context_settle(
		&charge, REAL(cuCtxCreate_v4)(context, parameters, flags, device), context);
}

static CUresult context_destroy(CUresult (*destroy)(CUcontext context), CUcontext context)
{
	struct allocation entry, stale;
	bool known = allocations_take(&created, (uintptr_t)context, &entry);
	CUresult result = destroy(context);

	if (known && result == CUDA_SUCCESS) {
		atomic_fetch_sub(&created_count, 1);
		memory_end(context, entry.card);
		ledger_release_context(entry.card, entry.bytes);
	} else if (known) {
		allocations_add(&created, &entry, &stale);
	}
	return result;
}

CUDA(cuCtxDestroy, (CUcontext context))
{
	return context_destroy(REAL(cuCtxDestroy), context);
}

CUDA(cuCtxDestroy_v2, (CUcontext context))
{
	return context_destroy(REAL(cuCtxDestroy_v2), context);
}

enum primary_state { PRIMARY_NOT_TOLD, PRIMARY_INACTIVE, PRIMARY_ACTIVE };

static enum primary_state primary_state(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS)
		return PRIMARY_NOT_TOLD;
	return active ? PRIMARY_ACTIVE : PRIMARY_INACTIVE;
}

/* One that is there already, for cudart makes it through the driver's export tables, takes nothing
 * more: refused, it would be charged beside what the daemon has measured of it. */
static bool primary_reserve(unsigned card, CUdevice device)
{
	uint64_t *bytes = &primary[card].bytes;

	primary[card].is_counted = primary_state(device) == PRIMARY_ACTIVE
					   ? ledger_count_context(card, bytes)
					   : ledger_reserve_context(card, bytes);
	return primary[card].is_counted;
}

static void primary_uncount(unsigned card)
{
	if (primary[card].is_counted)
		ledger_release_context(card, primary[card].bytes);
	primary[card].is_counted = false;
}

CUDA(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))
{
	unsigned card;
	CUresult result = card_of_device(&card, device);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&primaries);
	bool counted_before = primary[card].is_counted;
	if (!counted_before && !primary_reserve(card, device))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		result = REAL(cuDevicePrimaryCtxRetain)(context, device);
		if (result != CUDA_SUCCESS && !counted_before)
			primary_uncount(card);
	}
	pthread_mutex_unlock(&primaries);
	return result;
}

/* The driver ends the primary context, or it does not: others may still hold it. */
static CUresult primary_end(CUresult (*end)(CUdevice device), CUdevice device)
{
	unsigned card;
	bool granted = card_of_device(&card, device) == CUDA_SUCCESS;

	pthread_mutex_lock(&primaries);
	enum primary_state before = primary_state(device);
	CUresult result = end(device);
	if (granted && before == PRIMARY_ACTIVE && primary_state(device) == PRIMARY_INACTIVE) {
		memory_end(NULL, card);
		primary_uncount(card);
	}
	pthread_mutex_unlock(&primaries);
	return result;
}

CUDA(cuDevicePrimaryCtxRelease, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxRelease), device);
}

CUDA(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxRelease_v2), device);
}

CUDA(cuDevicePrimaryCtxReset, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxReset), device);
}

CUDA(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxReset_v2), device);
}

void contexts_after_fork_in_child(void)
{
	/* The child has none of its parent's contexts, as far as it can use them. */
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		primary[card].is_counted = false;
	allocations_forget(&created);
	atomic_store(&created_count, 0);
	/* Made anew rather than unlocked: a recursive mutex is its owner's only, and the child's
	 * thread is not the one that locked it. Nor is it locked before a fork: another thread may
	 * hold it for as long as the driver takes to make a context. */
	pthread_mutex_t unlocked = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	primaries = unlocked;
}
