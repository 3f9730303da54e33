/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, which are loaded into the current context. The linker's output (cuLinkComplete) stays on
 * the host until it is loaded.
 */
#include "module_cost.h"

/* `measured` is what the image costs; then come the arguments behind the module. */
#define LOAD(symbol, parameters, measured, ...)                                                    \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		struct module_cost cost;                                                           \
		CUmodule returned = NULL;                                                          \
		if (!module)                                                                       \
			return REAL(symbol)(module, __VA_ARGS__);                                  \
		CUresult result = module_cost_reserve(&cost, measured);                            \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = RETRY_LOAD(cost, REAL(symbol)(&returned, __VA_ARGS__));                   \
		module_cost_settle(&cost, result, (uintptr_t)returned);                            \
		if (result == CUDA_SUCCESS)                                                        \
			*module = returned;                                                        \
		return result;                                                                     \
	}

LOAD(cuModuleLoad, (CUmodule * module, const char *path), module_cost_measure_file(path), path)
LOAD(cuModuleLoadData, (CUmodule * module, const void *image), module_cost_measure(image), image)
LOAD(cuModuleLoadDataEx,
	(CUmodule * module, const void *image, unsigned int option_count, CUjit_option *options,
		void **option_values),
	module_cost_measure(image), image, option_count, options, option_values)
LOAD(cuModuleLoadFatBinary, (CUmodule * module, const void *image), module_cost_measure(image),
	image)

CUDA(cuModuleUnload, (CUmodule module))
{
	const struct module_charge charge = module_cost_take((uintptr_t)module);
	CUresult result = REAL(cuModuleUnload)(module);

	module_cost_free(&charge, result);
	return result;
}
