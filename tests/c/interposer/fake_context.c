/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake driver's contexts beyond the plain ones, and their limits: what the simulator cannot be
 * told to do.
 *
 * FAKE_CUDA_LIMIT     "used" where a kernel has used the heap, so that no limit can be set
 */
#include <stdlib.h>

#include "cuda_driver.h"

#define KIB ((size_t)1024)
#define MIB (KIB * 1024)

static size_t limits[CU_LIMIT_MAX] = {
	[CU_LIMIT_STACK_SIZE] = KIB,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 8 * MIB,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB,
};

/* A green context retains the primary one of its device. */
struct CUgreenCtx_st {
	CUdevice device;
};

CUresult cuGreenCtxCreate(
	CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
	CUcontext primary;

	(void)resources, (void)flags;
	if (getenv("FAKE_CUDA_FAIL"))
		return CUDA_ERROR_LAUNCH_FAILED;
	*context = malloc(sizeof(**context));
	(*context)->device = device;
	return cuDevicePrimaryCtxRetain(&primary, device);
}

CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
	CUdevice device = context->device;

	free(context);
	return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	*value = limits[limit];
	return CUDA_SUCCESS;
}

/* Rounds up to 64 KiB, and stops at 64 MiB. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	if (getenv("FAKE_CUDA_LIMIT"))
		return CUDA_ERROR_INVALID_VALUE;
	value = value < 64 * MIB ? value : 64 * MIB;
	limits[limit] = (value + 64 * KIB - 1) / (64 * KIB) * (64 * KIB);
	return CUDA_SUCCESS;
}
