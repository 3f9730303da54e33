/* SPDX-License-Identifier: Apache-2.0
 *
 * A context's limits. Limits that stand for memory take the increase above the default from the
 * card when they are set; the default's memory is part of the context's own.
 */
#include "memory.h"

/* As cuCtxGetLimit reports them in a new context. */
static const size_t defaults[LIMITS] = {[CU_LIMIT_STACK_SIZE] = 1024,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 8 << 20,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
	[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
	[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
	[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64};

void limits_begin(CUcontext context)
{
	for (int limit = 0; limit < LIMITS; limit++)
		context->limits[limit] = defaults[limit];
}

/* How often the card holds what a limit names: a stack for each thread that can be resident. */
static uint64_t multiplicity(CUcontext context, CUlimit limit)
{
	const struct sim_profile *profile = card_profile(context->card);

	switch (limit) {
	case CU_LIMIT_STACK_SIZE:
		return (uint64_t)profile->multiprocessors * profile->threads_per_multiprocessor;
	case CU_LIMIT_PRINTF_FIFO_SIZE:
	case CU_LIMIT_MALLOC_HEAP_SIZE:
		return 1;
	default:
		return 0;
	}
}

/* The memory of a limit of `value` beyond the default; more than any card has if it overflows. */
static uint64_t growth(CUcontext context, CUlimit limit, size_t value)
{
	uint64_t times = multiplicity(context, limit), bytes;

	if (value <= defaults[limit] || times == 0)
		return 0;
	if (__builtin_mul_overflow(value - defaults[limit], times, &bytes) ||
		bytes > UINT64_MAX - UNIT_BYTES)
		return UINT64_MAX;
	return (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

static bool change(CUcontext context, uint64_t before, uint64_t after)
{
	bool fits = true;

	card_lock(context->card);
	if (after > before)
		fits = card_reserve(context->card, after - before);
	else
		card_release(context->card, before - after);
	card_unlock(context->card);
	return fits;
}

void limits_end(CUcontext context)
{
	for (CUlimit limit = 0; limit < LIMITS; limit++)
		change(context, growth(context, limit, context->limits[limit]), 0);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
	REQUIRE((unsigned int)limit < LIMITS, CUDA_ERROR_UNSUPPORTED_LIMIT);
	latch_take(&context->latch);
	*value = context->limits[limit];
	latch_drop(&context->latch);
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	REQUIRE_CONTEXT(context);
	REQUIRE((unsigned int)limit < LIMITS, CUDA_ERROR_UNSUPPORTED_LIMIT);
	/* An H100 with driver 580, which sets less than requested for the other two. */
	REQUIRE(limit != CU_LIMIT_STACK_SIZE ||
			growth(context, limit, value) <= card_profile(context->card)->memory_bytes,
		CUDA_ERROR_INVALID_VALUE);
	latch_take(&context->latch);
	if (!change(context, growth(context, limit, context->limits[limit]),
		    growth(context, limit, value))) {
		latch_drop(&context->latch);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context->limits[limit] = value;
	latch_drop(&context->latch);
	return CUDA_SUCCESS;
}
