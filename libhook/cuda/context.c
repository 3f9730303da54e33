/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts that the program creates itself.
 *
 * Lock order: `attaching`, then the driver's own locks.
 */
#include "context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "array.h"
#include "backing.h"
#include "cards.h"
#include "charge.h"
#include "context_limit.h"
#include "context_primary.h"
#include "external.h"
#include "ipc.h"
#include "library.h"
#include "module_cost.h"
#include "timing_context_end.h"
#include "quota/ledger.h"
#include "share/timing_events.h"

static struct allocations created; /* by cuCtxCreate; the owner is context_owner's number */
static _Atomic unsigned created_count;

static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
static struct allocations attached; /* and how often, in addition to its creation */

/* Contexts that are known to be counted, for programs that switch contexts often. */
#define SEEN 64
static _Atomic(CUcontext) seen[SEEN];

static _Atomic(CUcontext) *seen_place(CUcontext context)
{
	return &seen[((uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15)) >> 58];
}

void context_end_memory(uint64_t context, unsigned card)
{
	/* Another context may receive the same handle. */
	for (unsigned i = 0; i < SEEN; i++)
		atomic_store(&seen[i], NULL);
	charge_end_in(&buffers, context, card);
	ipc_end_context(context, card);
	external_end_context(context, card);
	backings_after_context(card);
	arrays_end_context(context, card);
	module_costs_end_context(context, card);
	limits_end_context(context, card);
}

uint64_t context_owner(void)
{
	CUcontext current = NULL;

	/* Most programs only use the primary context and need no check. */
	if (atomic_load_explicit(&created_count, memory_order_acquire) == 0 ||
		REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		return 0;
	struct allocation entry;
	return allocations_find(&created, (uintptr_t)current, &entry) ? entry.owner : 0;
}

bool context_is_created(CUcontext context)
{
	struct allocation entry;

	return allocations_find(&created, (uintptr_t)context, &entry);
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
	static _Atomic uint64_t last_number;
	struct allocation stale;

	if (result != CUDA_SUCCESS) {
		ledger_release_context(charge->card, charge->bytes);
		return result;
	}
	struct allocation entry = {.handle = (uintptr_t)*context,
		.bytes = charge->bytes,
		.owner = atomic_fetch_add(&last_number, 1) + 1,
		.card = (uint16_t)charge->card};
	if (allocations_add(&created, &entry, &stale))
		atomic_fetch_add(&created_count, 1);
	atomic_fetch_add(&gate_line.contexts, 1);
	return result;
}

#define CREATE(symbol, parameters, ...)                                                            \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		struct charge charge;                                                              \
		CUresult result = context_reserve(&charge, device);                                \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = CHARGED(charge, REAL(symbol)(context, __VA_ARGS__));                      \
		return context_settle(&charge, result, context);                                   \
	}

CREATE(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), flags, device)
CREATE(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), flags, device)
CREATE(cuCtxCreate_v3,
	(CUcontext * context, CUexecAffinityParam *affinity, int affinity_count, unsigned int flags,
		CUdevice device),
	affinity, affinity_count, flags, device)
CREATE(cuCtxCreate_v4,
	(CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
	parameters, flags, device)

static CUresult context_destroy(CUresult (*destroy)(CUcontext context), CUcontext context)
{
	struct allocation entry, stale;
	bool known = allocations_take(&created, (uintptr_t)context, &entry);
	if (known)
		timing_before_context_end(entry.card, context, true);
	CUresult result = destroy(context);
	if (known)
		timing_after_context_end(entry.card, context, result == CUDA_SUCCESS);

	if (known && result == CUDA_SUCCESS) {
		atomic_fetch_sub(&created_count, 1);
		atomic_fetch_sub(&gate_line.contexts, 1);
		allocations_take(&attached, (uintptr_t)context, &stale);
		context_end_memory(entry.owner, entry.card);
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

/* How often `context` is attached in addition to its creation, changed by `change`. Under the
 * lock. */
static uint32_t attached_change(CUcontext context, uint32_t change)
{
	struct allocation entry = {.handle = (uintptr_t)context}, stale;

	allocations_take(&attached, entry.handle, &entry);
	const uint32_t before = entry.references;
	entry.references += change;
	if (entry.references)
		allocations_add(&attached, &entry, &stale);
	return before;
}

CUDA(cuCtxAttach, (CUcontext * context, unsigned int flags))
{
	pthread_mutex_lock(&attaching);
	CUresult result = REAL(cuCtxAttach)(context, flags);
	if (result == CUDA_SUCCESS)
		attached_change(*context, 1);
	pthread_mutex_unlock(&attaching);
	return result;
}

/* The last detach destroys the context. */
CUDA(cuCtxDetach, (CUcontext context))
{
	CUresult result;

	pthread_mutex_lock(&attaching);
	if (attached_change(context, 0) == 0) {
		result = context_destroy(REAL(cuCtxDetach), context);
	} else {
		result = REAL(cuCtxDetach)(context);
		if (result == CUDA_SUCCESS)
			attached_change(context, (uint32_t)-1);
	}
	pthread_mutex_unlock(&attaching);
	return result;
}

/* Kept out of the way of frequent calls. */
__attribute__((noinline, cold)) static void meet(CUcontext context)
{
	struct allocation entry;
	CUdevice device;

	if (!allocations_find(&created, (uintptr_t)context, &entry) &&
		REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
		primary_meet(device);
	atomic_store(seen_place(context), context);
}

/* The context that becomes current may be a primary context that was created through the driver's
 * export tables, as cudart does: it is first seen here. */
static CUresult met(CUresult result, CUcontext context)
{
	if (result == CUDA_SUCCESS && context &&
		atomic_load_explicit(seen_place(context), memory_order_acquire) != context)
		meet(context);
	return result;
}

CUDA(cuCtxSetCurrent, (CUcontext context))
{
	return met(REAL(cuCtxSetCurrent)(context), context);
}

CUDA(cuCtxPushCurrent, (CUcontext context))
{
	return met(REAL(cuCtxPushCurrent)(context), context);
}

CUDA(cuCtxPushCurrent_v2, (CUcontext context))
{
	return met(REAL(cuCtxPushCurrent_v2)(context), context);
}

void contexts_after_fork_in_child(void)
{
	/* The child cannot use any of its parent's contexts. The lock is reinitialized: it is held
	 * while the driver destroys a context, too long to be taken before a fork. */
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	attaching = unlocked;
	allocations_forget(&created);
	allocations_forget(&attached);
	atomic_store(&created_count, 0);
	atomic_store(&gate_line.contexts, 0);
	for (unsigned i = 0; i < SEEN; i++)
		atomic_store(&seen[i], NULL);
	primaries_after_fork_in_child();
	arrays_after_fork_in_child();
	module_costs_after_fork_in_child();
	libraries_after_fork_in_child();
	limits_after_fork_in_child();
}
