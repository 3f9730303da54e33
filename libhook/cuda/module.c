/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, which are loaded into the current context. What the linker makes (cuLinkComplete) lies
 * on the host until it is loaded.
 */
#include "load.h"

static CUresult module_settle(
	const struct load *load, CUresult result, CUmodule given, CUmodule *module)
{
	load_settle(load, result, (uintptr_t)given);
	if (result == CUDA_SUCCESS)
		*module = given;
	return result;
}

CUDA(cuModuleLoad, (CUmodule * module, const char *path))
{
	struct load load;
	CUmodule given = NULL;

	if (!module)
		return REAL(cuModuleLoad)(module, path);
	CUresult result = load_reserve(&load, load_measure_file(path));

	if (result != CUDA_SUCCESS)
		return result;
	result = LOADED(load, REAL(cuModuleLoad)(&given, path));
	return module_settle(&load, result, given, module);
}

CUDA(cuModuleLoadData, (CUmodule * module, const void *image))
{
	struct load load;
	CUmodule given = NULL;

	if (!module)
		return REAL(cuModuleLoadData)(module, image);
	CUresult result = load_reserve(&load, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = LOADED(load, REAL(cuModuleLoadData)(&given, image));
	return module_settle(&load, result, given, module);
}

CUDA(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned int option_count,
				 CUjit_option *options, void **option_values))
{
	struct load load;
	CUmodule given = NULL;

	if (!module)
		return REAL(cuModuleLoadDataEx)(
			module, image, option_count, options, option_values);
	CUresult result = load_reserve(&load, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = LOADED(load,
		REAL(cuModuleLoadDataEx)(&given, image, option_count, options, option_values));
	return module_settle(&load, result, given, module);
}

CUDA(cuModuleLoadFatBinary, (CUmodule * module, const void *image))
{
	struct load load;
	CUmodule given = NULL;

	if (!module)
		return REAL(cuModuleLoadFatBinary)(module, image);
	CUresult result = load_reserve(&load, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = LOADED(load, REAL(cuModuleLoadFatBinary)(&given, image));
	return module_settle(&load, result, given, module);
}

CUDA(cuModuleUnload, (CUmodule module))
{
	const struct loaded loaded = load_take((uintptr_t)module);
	CUresult result = REAL(cuModuleUnload)(module);

	load_free(&loaded, result);
	return result;
}
