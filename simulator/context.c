/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each has a queue on its card. A process's first context on a card takes the memory that
 * the profile calls context_bytes, and makes NVML list the process.
 */
#include "driver.h"

#include "engine.h"
#include "memory.h"
#include "mps.h"

#include <stdlib.h>

#define STACK_DEPTH 32

/* Current contexts of a thread, innermost last. */
static _Thread_local struct {
	unsigned int depth;
	CUcontext contexts[STACK_DEPTH];
} stack __attribute__((tls_model("initial-exec")));

/* All living contexts, and the primary ones with their reference counts. */
static struct latch living;
static CUcontext contexts;
/* Destroyed ones stay, marked: a handle may still be on some thread's stack. */
static CUcontext destroyed;
static struct {
	CUcontext context;
	unsigned int retained;
} primaries[SIM_CARDS];

bool context_valid(CUcontext context)
{
	return context && context->kind == OBJECT_CONTEXT;
}

CUresult context_current(CUcontext *context)
{
	CUresult status;

	REQUIRE_DRIVER();
	*context = stack.depth ? stack.contexts[stack.depth - 1] : NULL;
	REQUIRE(*context, CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(context_valid(*context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	status = mps_status();
	return status != CUDA_SUCCESS ? status : fault_of_card((*context)->card);
}

static CUresult context_join_card(CUcontext context)
{
	struct sim_card *card = context->card;
	struct sim_share *share = &card->shares[tag_process(process_tag())];
	CUresult result = CUDA_SUCCESS;

	card_lock(card);
	if (compute_mode_forbids(card)) {
		result = CUDA_ERROR_DEVICE_UNAVAILABLE;
	} else if (share->contexts == 0 && !card_reserve(card, card_profile(card)->context_bytes)) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		context->queue = engine_context_new(card);
		if (context->queue)
			share->contexts++;
		else if (share->contexts == 0)
			card_release(card, card_profile(card)->context_bytes);
		result = context->queue ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	card_unlock(card);
	return result;
}

static void context_leave_card(CUcontext context)
{
	struct sim_card *card = context->card;
	struct sim_share *share = &card->shares[tag_process(process_tag())];

	card_lock(card);
	engine_context_drop(context->queue);
	card_release(card, context->green_bytes);
	if (--share->contexts == 0)
		card_release(card, card_profile(card)->context_bytes);
	card_unlock(card);
}

static CUresult context_new(CUcontext *result, unsigned int flags, CUdevice ordinal)
{
	CUcontext context = aligned_alloc(64, sizeof(*context));
	CUresult status;

	REQUIRE(context, CUDA_ERROR_OUT_OF_MEMORY);
	status = mps_status();
	if (status == CUDA_SUCCESS)
		status = fault_next(device_card(ordinal));
	if (status != CUDA_SUCCESS) {
		free(context);
		return status;
	}
	*context = (struct CUctx_st){
		.kind = OBJECT_CONTEXT,
		.device = ordinal,
		.flags = flags,
		.card = device_card(ordinal),
		.attached = 1,
	};
	limits_begin(context);
	status = context_join_card(context);
	if (status != CUDA_SUCCESS) {
		free(context);
		return status;
	}
	stream_begin(&context->legacy, context, 0);
	stream_begin(&context->per_thread, context, 0);
	latch_take(&living);
	context->next = contexts;
	contexts = context;
	latch_drop(&living);
	*result = context;
	return CUDA_SUCCESS;
}

static void context_free(CUcontext context)
{
	context_drain(context);
	latch_take(&living);
	for (CUcontext *link = &contexts; *link; link = &(*link)->next) {
		if (*link == context) {
			*link = context->next;
			break;
		}
	}
	latch_drop(&living);
	modules_forget_context(context);
	graphs_forget_context(context);
	pools_forget_context(context);
	managed_forget_context(context);
	memory_forget_context(context);
	event_forget_context(context);
	limits_end(context);
	context_leave_card(context);
	context->kind = 0;
	latch_take(&living);
	context->next = destroyed;
	destroyed = context;
	latch_drop(&living);
}

bool contexts_are_idle(void)
{
	bool idle = !host_functions_are_pending();

	latch_take(&living);
	for (CUcontext context = contexts; context && idle; context = context->next)
		idle = queue_reached(context, atomic_load(&context->queue->submitted_ns));
	latch_drop(&living);
	return idle;
}

void contexts_leave_queues(void)
{
	for (CUcontext context = contexts; context; context = context->next) {
		event_forget_context(context);
		context->position = atomic_load(&context->queue->submitted_ns);
		card_lock(context->card);
		engine_context_drop(context->queue);
		card_unlock(context->card);
		context->queue = NULL;
	}
}

bool contexts_take_queues(void)
{
	for (CUcontext context = contexts; context; context = context->next) {
		card_lock(context->card);
		context->queue = engine_context_new(context->card);
		if (context->queue) {
			atomic_store(&context->queue->submitted_ns, context->position);
			atomic_store(&context->queue->served_ns, context->position);
		}
		card_unlock(context->card);
		context->dry_ticks = 0;
		if (!context->queue)
			return false;
	}
	return true;
}

CUcontext context_primary(CUdevice ordinal)
{
	return primaries[ordinal].context;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
	CUcontext made = NULL;

	REQUIRE_DRIVER();
	REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	latch_take(&living);
	/* Created outside the latch, because it takes others; of two created at once, one is
	 * discarded. */
	while (!primaries[ordinal].context) {
		if (made) {
			made->primary = true;
			primaries[ordinal].context = made;
			made = NULL;
		} else {
			CUresult status;

			latch_drop(&living);
			status = context_new(&made, 0, ordinal);
			if (status != CUDA_SUCCESS)
				return status;
			latch_take(&living);
		}
	}
	primaries[ordinal].retained++;
	*context = primaries[ordinal].context;
	latch_drop(&living);
	if (made)
		context_free(made);
	return CUDA_SUCCESS;
}

static CUresult primary_drop(CUdevice ordinal, bool whole)
{
	CUcontext gone = NULL;

	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	latch_take(&living);
	if (!primaries[ordinal].context) {
		latch_drop(&living);
		return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	}
	if (whole || --primaries[ordinal].retained == 0) {
		gone = primaries[ordinal].context;
		primaries[ordinal].context = NULL;
		primaries[ordinal].retained = 0;
	}
	latch_drop(&living);
	if (gone)
		context_free(gone);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	return primary_drop(ordinal, false);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
	return primary_drop(ordinal, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	return primary_drop(ordinal, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
	return primary_drop(ordinal, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(flags && active, CUDA_ERROR_INVALID_VALUE);
	*flags = 0;
	*active = primaries[ordinal].context != NULL;
	return CUDA_SUCCESS;
}

static CUresult create_and_push(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	CUresult status;

	REQUIRE_DRIVER();
	REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	status = context_new(context, flags, ordinal);
	return status == CUDA_SUCCESS ? cuCtxPushCurrent_v2(*context) : status;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	return create_and_push(context, flags, ordinal);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal)
{
	return create_and_push(context, flags, ordinal);
}

/* Execution affinity is about SMs, which time slices do not model. */
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinity_count,
	unsigned int flags, CUdevice ordinal)
{
	REQUIRE(!affinity && affinity_count == 0, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
	return create_and_push(context, flags, ordinal);
}

CUresult cuCtxCreate_v4(
	CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice ordinal)
{
	REQUIRE(!parameters, CUDA_ERROR_NOT_SUPPORTED);
	return create_and_push(context, flags, ordinal);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	REQUIRE_DRIVER();
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(!context->primary, CUDA_ERROR_INVALID_CONTEXT);
	if (stack.depth && stack.contexts[stack.depth - 1] == context)
		stack.depth--;
	context_free(context);
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

/* The two of CUDA 1: a context that is current gains or loses a reference. */
CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
	REQUIRE_CONTEXT(own);
	REQUIRE(context && flags == 0, CUDA_ERROR_INVALID_VALUE);
	atomic_fetch_add(&own->attached, 1);
	*context = own;
	return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context)
{
	REQUIRE_CONTEXT(own);
	REQUIRE(context == own, CUDA_ERROR_INVALID_CONTEXT);
	if (atomic_load(&own->attached) > 1) {
		atomic_fetch_sub(&own->attached, 1);
		return CUDA_SUCCESS;
	}
	return cuCtxDestroy_v2(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	REQUIRE_DRIVER();
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(stack.depth < STACK_DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
	stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	return cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	REQUIRE_DRIVER();
	REQUIRE(stack.depth > 0, CUDA_ERROR_INVALID_CONTEXT);
	stack.depth--;
	if (context)
		*context = stack.contexts[stack.depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	return cuCtxPopCurrent_v2(context);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	REQUIRE_DRIVER();
	REQUIRE(!context || context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	if (stack.depth > 0)
		stack.depth--;
	if (context)
		stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	REQUIRE_DRIVER();
	REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
	*context = stack.depth ? stack.contexts[stack.depth - 1] : NULL;
	return CUDA_SUCCESS;
}
