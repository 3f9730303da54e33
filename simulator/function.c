/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of functions. Since code is not read, registers and shared memory are figures of a
 * small kernel.
 */
#include "module.h"

static CUresult attribute_get(int *value, CUfunction_attribute attribute, CUfunction function)
{
	REQUIRE(value && (unsigned int)attribute < FUNCTION_ATTRIBUTES, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	*value = function->attributes[attribute];
	return CUDA_SUCCESS;
}

static CUresult attribute_set(CUfunction function, CUfunction_attribute attribute, int value)
{
	REQUIRE(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
			attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ||
			((unsigned int)attribute >= 10 &&
				(unsigned int)attribute < FUNCTION_ATTRIBUTES),
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	function->attributes[attribute] = value;
	return CUDA_SUCCESS;
}

static CUresult parameter_get(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
	const struct parameter *parameter;

	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(offset && index < function->kernel->parameter_count, CUDA_ERROR_INVALID_VALUE);
	parameter = &function->kernel->parameters[index];
	*offset = parameter->offset;
	if (bytes)
		*bytes = parameter->bytes;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	REQUIRE_DRIVER();
	return attribute_get(value, attribute, function);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	REQUIRE_DRIVER();
	return attribute_set(function, attribute, value);
}

/* There is no cache and no bank that a preference could apply to. */
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
	(void)config;
	REQUIRE_DRIVER();
	return function_valid(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config)
{
	return cuFuncSetCacheConfig(function, config);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	REQUIRE_DRIVER();
	REQUIRE(module, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	*module = function->module;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	REQUIRE_DRIVER();
	REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	*name = function->kernel->name;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
	REQUIRE_DRIVER();
	return parameter_get(function, index, offset, bytes);
}

CUresult cuFuncIsLoaded(CUfunction_loading_state *state, CUfunction function)
{
	REQUIRE_DRIVER();
	REQUIRE(state, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	*state = 1;
	return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function)
{
	return cuFuncSetCacheConfig(function, 0);
}

/* A kernel handle and a function handle of the same kernel are one object here. */
static CUfunction kernel_function(CUkernel kernel)
{
	return (CUfunction)(void *)kernel;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(function, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(kernel_function(kernel)), CUDA_ERROR_INVALID_HANDLE);
	*function = kernel_function(kernel);
	return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	return cuFuncGetName(name, kernel_function(kernel));
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	REQUIRE_DRIVER();
	REQUIRE(library, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(kernel_function(kernel)), CUDA_ERROR_INVALID_HANDLE);
	*library = (CUlibrary)(void *)kernel_function(kernel)->module;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(
	int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice ordinal)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	return attribute_get(value, attribute, kernel_function(kernel));
}

CUresult cuKernelSetAttribute(
	CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice ordinal)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	return attribute_set(kernel_function(kernel), attribute, value);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice ordinal)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	return cuFuncSetCacheConfig(kernel_function(kernel), config);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
	REQUIRE_DRIVER();
	return parameter_get(kernel_function(kernel), index, offset, bytes);
}

/* Blocks by threads and shared memory; registers are never the limit. */
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
	int block_threads, size_t shared_bytes, unsigned int flags)
{
	const struct sim_profile *profile;
	size_t most;

	REQUIRE_CONTEXT(context);
	REQUIRE(blocks && block_threads > 0 && flags <= 1, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	profile = card_profile(context->card);
	most = profile->threads_per_multiprocessor / (size_t)block_threads;
	if (shared_bytes > 0 && profile->shared_bytes_per_multiprocessor / shared_bytes < most)
		most = profile->shared_bytes_per_multiprocessor / shared_bytes;
	*blocks = (int)most;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
	int *blocks, CUfunction function, int block_threads, size_t shared_bytes)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
		blocks, function, block_threads, shared_bytes, 0);
}
