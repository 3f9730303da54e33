/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, which are loaded into the current context. The linker's output (cuLinkComplete) stays on
 * the host until it is loaded.
 */
#include "module_cost.h"

static CUresult module_settle(
	const struct module_cost *cost, CUresult result, CUmodule returned, CUmodule *module)
{
	module_cost_settle(cost, result, (uintptr_t)returned);
	if (result == CUDA_SUCCESS)
		*module = returned;
	return result;
}

CUDA(cuModuleLoad, (CUmodule * module, const char *path))
{
	struct module_cost cost;
	CUmodule returned = NULL;

	if (!module)
		return REAL(cuModuleLoad)(module, path);
	CUresult result = module_cost_reserve(&cost, module_cost_measure_file(path));

	if (result != CUDA_SUCCESS)
		return result;
	result = RETRY_LOAD(cost, REAL(cuModuleLoad)(&returned, path));
	return module_settle(&cost, result, returned, module);
}

CUDA(cuModuleLoadData, (CUmodule * module, const void *image))
{
	struct module_cost cost;
	CUmodule returned = NULL;

	if (!module)
		return REAL(cuModuleLoadData)(module, image);
	CUresult result = module_cost_reserve(&cost, module_cost_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = RETRY_LOAD(cost, REAL(cuModuleLoadData)(&returned, image));
	return module_settle(&cost, result, returned, module);
}

CUDA(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned int option_count,
				 CUjit_option *options, void **option_values))
{
	struct module_cost cost;
	CUmodule returned = NULL;

	if (!module)
		return REAL(cuModuleLoadDataEx)(
			module, image, option_count, options, option_values);
	CUresult result = module_cost_reserve(&cost, module_cost_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = RETRY_LOAD(cost,
		REAL(cuModuleLoadDataEx)(&returned, image, option_count, options, option_values));
	return module_settle(&cost, result, returned, module);
}

CUDA(cuModuleLoadFatBinary, (CUmodule * module, const void *image))
{
	struct module_cost cost;
	CUmodule returned = NULL;

	if (!module)
		return REAL(cuModuleLoadFatBinary)(module, image);
	CUresult result = module_cost_reserve(&cost, module_cost_measure(image));

	if (result != CUDA_SUCCESS)
		return result;
	result = RETRY_LOAD(cost, REAL(cuModuleLoadFatBinary)(&returned, image));
	return module_settle(&cost, result, returned, module);
}

CUDA(cuModuleUnload, (CUmodule module))
{
	const struct module_charge charge = module_cost_take((uintptr_t)module);
	CUresult result = REAL(cuModuleUnload)(module);

	module_cost_free(&charge, result);
	return result;
}
