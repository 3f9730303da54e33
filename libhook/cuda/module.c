/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, which are loaded into the current context. What the linker makes (cuLinkComplete) lies
 * on the host until it is loaded.
 */
#include "load.h"

static CUresult module_settle(const struct load *load, CUresult result, const CUmodule *module)
{
	return load_settle(load, result, result == CUDA_SUCCESS ? (uintptr_t)*module : 0);
}

CUDA(cuModuleLoad, (CUmodule * module, const char *path))
{
	struct load load;
	CUresult result = load_reserve(&load, load_measure_file(path));

	if (result != CUDA_SUCCESS)
		return result;
	return module_settle(&load, REAL(cuModuleLoad)(module, path), module);
}

CUDA(cuModuleLoadData, (CUmodule * module, const void *image))
{
	struct load load;
	CUresult result = load_reserve(&load, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	return module_settle(&load, REAL(cuModuleLoadData)(module, image), module);
}

CUDA(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned int option_count,
				 CUjit_option *options, void **option_values))
{
	struct load load;
	CUresult result = load_reserve(&load, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuModuleLoadDataEx)(module, image, option_count, options, option_values);
	return module_settle(&load, result, module);
}

CUDA(cuModuleLoadFatBinary, (CUmodule * module, const void *image))
{
	struct load load;
	CUresult result = load_reserve(&load, load_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	return module_settle(&load, REAL(cuModuleLoadFatBinary)(module, image), module);
}

CUDA(cuModuleUnload, (CUmodule module))
{
	const struct loaded loaded = load_take((uintptr_t)module);
	CUresult result = REAL(cuModuleUnload)(module);

	load_free(&loaded, result);
	return result;
}
