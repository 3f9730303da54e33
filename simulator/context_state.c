/* SPDX-License-Identifier: Apache-2.0
 *
 * A context's properties and settings.
 */
#include "driver.h"

CUresult cuCtxGetDevice(CUdevice *ordinal)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(ordinal, CUDA_ERROR_INVALID_VALUE);
	*ordinal = context->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(flags, CUDA_ERROR_INVALID_VALUE);
	*flags = context->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	REQUIRE_CONTEXT(context);
	REQUIRE_NO_CAPTURE();
	context_drain(context);
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	if (!context)
		return cuCtxSynchronize();
	REQUIRE_DRIVER();
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE_NO_CAPTURE();
	context_drain(context);
	return CUDA_SUCCESS;
}
