/* SPDX-License-Identifier: Apache-2.0
 *
 * A card's primary context, of which a process has one, and green contexts: each is a subset of the
 * card's multiprocessors on the primary context, which it retains (cuGreenCtxCreate in cuda.h). Its
 * memory is not free again when it is destroyed: it is charged until the primary context ends.
 *
 * Lock order: `primaries`, then the driver's own locks. It is held while the driver creates or
 * destroys a primary context, which calls back only this thread's own tools: therefore it is
 * recursive. It is not held while a creation that ran out of memory waits for a retry
 * (oom_retry.h).
 */
#include "context_primary.h"

#include <pthread.h>
#include <stdbool.h>

#include "cards.h"
#include "charge.h"
#include "context.h"
#include "oom_retry.h"
#include "timing_context_end.h"
#include "quota/ledger.h"
#include "share/timing_events.h"

static pthread_mutex_t primaries = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct primary {
	bool is_counted;
	uint64_t bytes; /* its size at that time, and all green contexts since */
} primary[GPUSHARE_MAX_CARDS];

static struct allocations green; /* contexts, with their device as owner */

/* Of each one, on an H100 and an H200 with driver 580; the first takes 2 MiB more. */
#define GREEN_CONTEXT_BYTES (UINT64_C(4) << 20)

enum primary_state { PRIMARY_NOT_TOLD, PRIMARY_INACTIVE, PRIMARY_ACTIVE };

static enum primary_state primary_state(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS)
		return PRIMARY_NOT_TOLD;
	return active ? PRIMARY_ACTIVE : PRIMARY_INACTIVE;
}

/* A primary context that already exists, because cudart creates it through the driver's export
 * tables, takes no further memory: if it were refused, it would be charged in addition to what the
 * daemon has measured. */
static bool primary_reserve(unsigned card, CUdevice device)
{
	uint64_t *bytes = &primary[card].bytes;

	primary[card].is_counted = primary_state(device) == PRIMARY_ACTIVE
					   ? ledger_count_context(card, bytes)
					   : ledger_reserve_context(card, bytes);
	if (primary[card].is_counted)
		atomic_fetch_add(&gate_line.contexts, 1);
	return primary[card].is_counted;
}

static void primary_uncount(unsigned card)
{
	if (primary[card].is_counted) {
		ledger_release_context(card, primary[card].bytes);
		atomic_fetch_sub(&gate_line.contexts, 1);
	}
	primary[card].is_counted = false;
}

void primary_meet(CUdevice device)
{
	unsigned card;

	if (card_of_device(&card, device) != CUDA_SUCCESS)
		return;
	pthread_mutex_lock(&primaries);
	if (!primary[card].is_counted && primary_state(device) == PRIMARY_ACTIVE) {
		primary[card].is_counted = ledger_count_context(card, &primary[card].bytes);
		if (primary[card].is_counted)
			atomic_fetch_add(&gate_line.contexts, 1);
	}
	pthread_mutex_unlock(&primaries);
}

/* A call that creates a primary context, or finds an existing one. */
struct making {
	unsigned card;
	CUdevice device;
	bool is_counted_by_us;
};

static bool making_count(struct making *making)
{
	if (primary[making->card].is_counted)
		return true;
	making->is_counted_by_us = primary_reserve(making->card, making->device);
	return making->is_counted_by_us;
}

/* Take the lock, and reserve the size of a primary context that is not counted yet. After an error,
 * nothing is held. */
static CUresult making_begin(struct making *making, CUdevice device)
{
	CUresult result = card_of_device(&making->card, device);

	if (result != CUDA_SUCCESS)
		return result;
	making->device = device;
	making->is_counted_by_us = false;
	pthread_mutex_lock(&primaries);
	if (making_count(making))
		return CUDA_SUCCESS;
	pthread_mutex_unlock(&primaries);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Meanwhile, other threads may create it, destroy it, or give up, and with that its reservation. */
static bool making_wait(struct making *making, struct oom_retry *retry)
{
	pthread_mutex_unlock(&primaries);
	const bool again = oom_retry_wait(retry);
	pthread_mutex_lock(&primaries);
	return again && making_count(making);
}

/* RETRY_ON_OOM, without the lock while it waits. */
#define MADE(making, call)                                                                         \
	({                                                                                         \
		struct oom_retry retry_ = {                                                        \
			.card = (making).card, .bytes = primary[(making).card].bytes};             \
		CUresult answer_ = (call);                                                         \
		while (answer_ == CUDA_ERROR_OUT_OF_MEMORY && making_wait(&(making), &retry_))     \
			answer_ = (call);                                                          \
		answer_;                                                                           \
	})

static CUresult making_settle(const struct making *making, CUresult result)
{
	if (result != CUDA_SUCCESS && making->is_counted_by_us &&
		primary_state(making->device) != PRIMARY_ACTIVE)
		primary_uncount(making->card);
	pthread_mutex_unlock(&primaries);
	return result;
}

CUDA(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))
{
	struct making making;
	CUresult result = making_begin(&making, device);

	if (result != CUDA_SUCCESS)
		return result;
	result = MADE(making, REAL(cuDevicePrimaryCtxRetain)(context, device));
	return making_settle(&making, result);
}

CUDA(cuGreenCtxCreate,
	(CUgreenCtx * context, CUdevResourceDesc resources, CUdevice device, unsigned int flags))
{
	struct making making;
	struct allocation stale;
	CUresult result = making_begin(&making, device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!ledger_reserve(making.card, GPUSHARE_KIND_CONTEXT, GREEN_CONTEXT_BYTES))
		return making_settle(&making, CUDA_ERROR_OUT_OF_MEMORY);
	result = MADE(making, REAL(cuGreenCtxCreate)(context, resources, device, flags));
	if (result == CUDA_SUCCESS) {
		primary[making.card].bytes += GREEN_CONTEXT_BYTES;
		allocations_add(&green,
			&(struct allocation){
				.handle = (uintptr_t)*context, .owner = (uint64_t)device},
			&stale);
	} else {
		ledger_release(making.card, GPUSHARE_KIND_CONTEXT, GREEN_CONTEXT_BYTES);
	}
	return making_settle(&making, result);
}

/* After the driver's result: the primary context was destroyed, or others still hold it. */
static void primary_look(CUdevice device, enum primary_state before)
{
	unsigned card;

	if (before != PRIMARY_ACTIVE || primary_state(device) != PRIMARY_INACTIVE ||
		card_of_device(&card, device) != CUDA_SUCCESS)
		return;
	context_end_memory(0, card);
	primary_uncount(card);
}

static CUresult primary_end(CUresult (*end)(CUdevice device), CUdevice device, bool surely)
{
	unsigned card;

	pthread_mutex_lock(&primaries);
	enum primary_state before = primary_state(device);
	const bool is_card = card_of_device(&card, device) == CUDA_SUCCESS;
	if (is_card)
		timing_before_context_end(card, NULL, surely);
	CUresult result = end(device);
	if (is_card)
		timing_after_context_end(card, NULL, primary_state(device) != PRIMARY_ACTIVE);
	primary_look(device, before);
	pthread_mutex_unlock(&primaries);
	return result;
}

CUDA(cuDevicePrimaryCtxRelease, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxRelease), device, false);
}

CUDA(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxRelease_v2), device, false);
}

CUDA(cuDevicePrimaryCtxReset, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxReset), device, true);
}

CUDA(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
	return primary_end(REAL(cuDevicePrimaryCtxReset_v2), device, true);
}

CUDA(cuGreenCtxDestroy, (CUgreenCtx context))
{
	struct allocation entry, stale;
	CUcontext usable = NULL;
	unsigned card;

	pthread_mutex_lock(&primaries);
	bool known = allocations_take(&green, (uintptr_t)context, &entry);
	enum primary_state before = known ? primary_state((CUdevice)entry.owner) : PRIMARY_NOT_TOLD;
	const bool is_usable = known &&
			       card_of_device(&card, (CUdevice)entry.owner) == CUDA_SUCCESS &&
			       REAL(cuCtxFromGreenCtx)(&usable, context) == CUDA_SUCCESS;
	if (is_usable)
		timing_before_context_end(card, usable, true);
	CUresult result = REAL(cuGreenCtxDestroy)(context);
	if (is_usable)
		timing_after_context_end(card, usable, result == CUDA_SUCCESS);
	if (known && result == CUDA_SUCCESS)
		primary_look((CUdevice)entry.owner, before);
	else if (known)
		allocations_add(&green, &entry, &stale);
	pthread_mutex_unlock(&primaries);
	return result;
}

void primaries_after_fork_in_child(void)
{
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		primary[card].is_counted = false;
	allocations_forget(&green);
	/* Reinitialized rather than unlocked: only the owner may unlock a recursive mutex, and the
	 * child's thread is not the one that locked it. It is not locked before a fork either:
	 * another thread may hold it for as long as the driver takes to create a context. */
	pthread_mutex_t unlocked = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	primaries = unlocked;
}
