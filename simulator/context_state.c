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

CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext context)
{
	if (!context)
		return cuCtxGetDevice(ordinal);
	REQUIRE_DRIVER();
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
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

CUresult cuCtxSetFlags(unsigned int flags)
{
	REQUIRE_CONTEXT(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	REQUIRE_DRIVER();
	if (!context) {
		CUresult status = context_current(&context);

		if (status != CUDA_SUCCESS)
			return status;
	}
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(id, CUDA_ERROR_INVALID_VALUE);
	*id = context->id;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
	REQUIRE_DRIVER();
	if (!context) {
		CUresult status = context_current(&context);

		if (status != CUDA_SUCCESS)
			return status;
	}
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
	*version = context->api_version;
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

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
	*config = context->cache_config;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	REQUIRE_CONTEXT(context);
	context->cache_config = config;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(config, CUDA_ERROR_INVALID_VALUE);
	*config = context->shared_config;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	REQUIRE_CONTEXT(context);
	context->shared_config = config;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	REQUIRE_CONTEXT(context);
	/* The value on Volta and later; the engine serves in order of submission anyway. */
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

/* Nothing persists in a cache that does not exist. */
CUresult cuCtxResetPersistingL2Cache(void)
{
	REQUIRE_CONTEXT(context);
	return CUDA_SUCCESS;
}
