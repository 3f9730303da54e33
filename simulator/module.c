/* SPDX-License-Identifier: Apache-2.0 */
#include "module.h"

#include "memory.h"

#include <stdlib.h>
#include <string.h>

static struct latch latch;
static CUmodule modules;
/* Unloaded ones stay, marked, for handles of their functions that outlive them. */
static CUmodule unloaded;
static struct latch placing; /* before the space's */

#define PTX_KERNEL_BYTES UINT64_C(4096)

bool module_valid(CUmodule module)
{
	return module && module->kind == OBJECT_MODULE;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	uint64_t total;

	return __builtin_add_overflow(a, b, &total) ? UINT64_MAX : total;
}

/* The image's memory besides its named variables. The code size of compiled PTX is unknown: an
 * estimate per kernel. */
static uint64_t code_bytes(const struct CUmod_st *module)
{
	const struct declared_bytes *declared = &module->image.declared;
	uint64_t bytes = sum(sum(declared->globals, declared->constants), declared->code);

	for (const struct variable *variable = module->image.variables; variable;
		variable = variable->next) {
		if (!variable->managed)
			bytes -= variable->bytes < bytes ? variable->bytes : bytes;
	}
	return declared->code > 0 ? bytes : sum(bytes, module->function_count * PTX_KERNEL_BYTES);
}

static void unplace(CUmodule module)
{
	for (struct variable *variable = module->image.variables; variable;
		variable = variable->next) {
		if (variable->address && variable->managed)
			managed_give(variable->address);
		else if (variable->address)
			memory_give(variable->address);
		variable->address = 0;
	}
	if (module->code)
		memory_give(module->code);
	module->code = 0;
	module->placed = NULL;
}

static CUresult place_all(CUmodule module, CUcontext context)
{
	uint64_t code = code_bytes(module);
	CUresult result = fault_next(context->card);

	for (struct variable *variable = module->image.variables;
		variable && result == CUDA_SUCCESS; variable = variable->next) {
		if (variable->bytes > 0)
			result = (variable->managed ? managed_take : memory_take)(
				context, variable->bytes, &variable->address);
	}
	if (result == CUDA_SUCCESS && code > 0)
		result = memory_take(context, code, &module->code);
	return result;
}

CUresult module_place(CUmodule module, CUcontext context)
{
	CUresult result = CUDA_SUCCESS;

	if (__atomic_load_n(&module->placed, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	latch_take(&placing);
	if (!module->placed) {
		result = place_all(module, context);
		if (result == CUDA_SUCCESS)
			__atomic_store_n(&module->placed, context, __ATOMIC_RELEASE);
		else
			unplace(module);
	}
	latch_drop(&placing);
	return result;
}

static CUresult make_functions(CUmodule module)
{
	for (const struct kernel *kernel = module->image.kernels; kernel; kernel = kernel->next)
		module->function_count++;
	module->functions = calloc(module->function_count + 1, sizeof(*module->functions));
	REQUIRE(module->functions, CUDA_ERROR_OUT_OF_MEMORY);
	module->function_count = 0;
	for (const struct kernel *kernel = module->image.kernels; kernel; kernel = kernel->next) {
		CUfunction function = &module->functions[module->function_count++];

		*function = (struct CUfunc_st){.kind = OBJECT_FUNCTION,
			.timed = kernel->timed,
			.traps = strcmp(kernel->name, "trap") == 0,
			.kernel = kernel,
			.module = module};
	}
	return CUDA_SUCCESS;
}

CUresult module_new(CUmodule *result, CUcontext context, const void *data)
{
	CUmodule module = calloc(1, sizeof(*module));
	CUresult status;

	REQUIRE(module, CUDA_ERROR_OUT_OF_MEMORY);
	module->kind = OBJECT_MODULE;
	module->context = context;
	status = image_read(&module->image, data);
	if (status == CUDA_SUCCESS)
		status = make_functions(module);
	if (status == CUDA_SUCCESS && context)
		status = module_place(module, context);
	latch_take(&latch);
	module->next = modules;
	modules = module;
	latch_drop(&latch);
	if (status != CUDA_SUCCESS)
		module_free(module);
	else
		*result = module;
	return status;
}

static void module_clear(CUmodule module)
{
	unplace(module);
	for (unsigned int i = 0; i < module->function_count; i++)
		module->functions[i].kind = 0;
	image_free(&module->image);
	module->kind = 0;
}

void module_free(CUmodule module)
{
	latch_take(&latch);
	for (CUmodule *link = &modules; *link; link = &(*link)->next) {
		if (*link == module) {
			*link = module->next;
			break;
		}
	}
	latch_drop(&latch);
	module_clear(module);
	latch_take(&latch);
	module->next = unloaded;
	unloaded = module;
	latch_drop(&latch);
}

void modules_forget_context(CUcontext context)
{
	CUmodule gone;

	do {
		latch_take(&latch);
		for (gone = modules; gone && gone->context != context; gone = gone->next) {
			if (gone->placed == context)
				unplace(gone); /* a library, to be placed again elsewhere */
		}
		latch_drop(&latch);
		if (gone)
			module_free(gone);
	} while (gone);
}

CUfunction module_function(CUmodule module, const char *name)
{
	for (unsigned int i = 0; i < module->function_count; i++) {
		if (strcmp(module->functions[i].kernel->name, name) == 0)
			return &module->functions[i];
	}
	return NULL;
}

CUresult module_variable(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes)
{
	const struct variable *variable = module->image.variables;
	CUresult result;

	REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
	REQUIRE_CONTEXT(context);
	result = module_place(module, context);
	if (result != CUDA_SUCCESS)
		return result;
	while (variable && strcmp(variable->name, name) != 0)
		variable = variable->next;
	REQUIRE(variable, CUDA_ERROR_NOT_FOUND);
	if (pointer)
		*pointer = variable->address;
	if (bytes)
		*bytes = variable->bytes;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(module && image, CUDA_ERROR_INVALID_VALUE);
	return module_new(module, context, image);
}

/* There is nothing that the just-in-time options could change. */
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int option_count,
	CUjit_option *options, void **option_values)
{
	REQUIRE(option_count == 0 || (options && option_values), CUDA_ERROR_INVALID_VALUE);
	return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	size_t bytes;
	CUresult result;
	char *data;

	REQUIRE_CONTEXT(context);
	REQUIRE(module && path, CUDA_ERROR_INVALID_VALUE);
	data = image_load_file(path, &bytes);
	REQUIRE(data, CUDA_ERROR_FILE_NOT_FOUND);
	result = module_new(module, context, data);
	free(data);
	return result;
}

CUresult cuModuleUnload(CUmodule module)
{
	REQUIRE_DRIVER();
	REQUIRE(module_valid(module), CUDA_ERROR_INVALID_HANDLE);
	if (module->context)
		context_drain(module->context);
	module_free(module);
	return CUDA_SUCCESS;
}

/* 1: functions are loaded with their module. Drivers since 12.2 load them when they are first
 * used. */
CUresult cuModuleGetLoadingMode(CUmodule_loading_mode *mode)
{
	REQUIRE_DRIVER();
	REQUIRE(mode, CUDA_ERROR_INVALID_VALUE);
	*mode = 1;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(function && name, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(module_valid(module), CUDA_ERROR_INVALID_HANDLE);
	*function = module_function(module, name);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(
	CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(module_valid(module), CUDA_ERROR_INVALID_HANDLE);
	return module_variable(module, name, pointer, bytes);
}
