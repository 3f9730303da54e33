/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries: modules without a particular context.
 */
#include "module.h"

#include <stdlib.h>

static CUmodule library_module(CUlibrary library)
{
	CUmodule module = (CUmodule)(void *)library;

	return module_valid(module) ? module : NULL;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options,
	void **option_values, unsigned int option_count, CUlibraryOption *library_options,
	void **library_values, unsigned int library_option_count)
{
	CUmodule module;
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(library && image, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(option_count == 0 || (options && option_values), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(library_option_count == 0 || (library_options && library_values),
		CUDA_ERROR_INVALID_VALUE);
	result = module_new(&module, NULL, image);
	if (result == CUDA_SUCCESS)
		*library = (CUlibrary)(void *)module;
	return result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
	void **option_values, unsigned int option_count, CUlibraryOption *library_options,
	void **library_values, unsigned int library_option_count)
{
	size_t bytes;
	CUresult result;
	char *data;

	REQUIRE_DRIVER();
	REQUIRE(path, CUDA_ERROR_INVALID_VALUE);
	data = image_load_file(path, &bytes);
	REQUIRE(data, CUDA_ERROR_FILE_NOT_FOUND);
	result = cuLibraryLoadData(library, data, options, option_values, option_count,
		library_options, library_values, library_option_count);
	free(data);
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	REQUIRE_DRIVER();
	REQUIRE(library_module(library), CUDA_ERROR_INVALID_HANDLE);
	module_free(library_module(library));
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(module, CUDA_ERROR_INVALID_VALUE);
	*module = library_module(library);
	return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	REQUIRE_DRIVER();
	REQUIRE(kernel && name, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(library_module(library), CUDA_ERROR_INVALID_HANDLE);
	*kernel = (CUkernel)(void *)module_function(library_module(library), name);
	return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Placed in the context that first requests it. */
CUresult cuLibraryGetGlobal(
	CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(library_module(library), CUDA_ERROR_INVALID_HANDLE);
	return module_variable(library_module(library), name, pointer, bytes);
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
	REQUIRE_DRIVER();
	REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(kernel_function(kernel)), CUDA_ERROR_INVALID_HANDLE);
	*name = kernel_function(kernel)->kernel->name;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
	REQUIRE_DRIVER();
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(offset && index < function->kernel->parameter_count, CUDA_ERROR_INVALID_VALUE);
	*offset = function->kernel->parameters[index].offset;
	if (bytes)
		*bytes = function->kernel->parameters[index].bytes;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
	return cuFuncGetParamInfo(kernel_function(kernel), index, offset, bytes);
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	REQUIRE_DRIVER();
	REQUIRE(library, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function_valid(kernel_function(kernel)), CUDA_ERROR_INVALID_HANDLE);
	*library = (CUlibrary)(void *)kernel_function(kernel)->module;
	return CUDA_SUCCESS;
}
