/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: how long they last, and what their limits take.
 */
#include "made.h"

#include "expect.h"

#define RESIDENT_THREADS (UINT64_C(10) * 1024) /* of the made card */

static void a_limit_takes_what_it_is_raised_by(void)
{
	size_t before = free_bytes(), heap;
	CUcontext context;

	EXPECT_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE), CUDA_SUCCESS);
	EXPECT_EQUAL(heap, 8 * MIB);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 72 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 64 * MIB);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 32 * MIB);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 16 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 40 * MIB);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 3 * 1024), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 40 * MIB + 2 * 1024 * RESIDENT_THREADS);
	EXPECT_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void a_limit_over_the_card_is_refused_and_stays_as_it_was(void)
{
	size_t before = free_bytes(), stack;

	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
	EXPECT_EQUAL(stack, 1024);
	EXPECT_EQUAL(free_bytes(), before);
}

static void the_last_detach_destroys(void)
{
	size_t before = free_bytes();
	CUcontext context, attached;
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxAttach(&attached, 0), CUDA_SUCCESS);
	EXPECT(attached == context);
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxDetach(context), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuCtxDetach(context), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuCtxDetach(context), CUDA_ERROR_INVALID_CONTEXT);
}

void test_contexts(void)
{
	a_limit_takes_what_it_is_raised_by();
	a_limit_over_the_card_is_refused_and_stays_as_it_was();
	the_last_detach_destroys();
}
