/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules and the functions in them. A library (cuLibrary*) is a module that belongs to no context
 * until one of its kernels is used in it, and a kernel is a function of such a module.
 */
#ifndef GPUSHARE_SIMULATOR_MODULE_H
#define GPUSHARE_SIMULATOR_MODULE_H

#include "driver.h"
#include "image/image.h"

struct CUfunc_st {
	uint32_t kind;
	bool timed; /* the first parameter is a duration in nanoseconds */
	bool traps;
	const struct kernel *kernel;
	CUmodule module;
	unsigned int block[3];	  /* for launches of the first form */
	unsigned char *arguments; /* and with these; null: none yet */
	size_t argument_bytes;
};

struct CUmod_st {
	uint32_t kind;
	CUcontext context; /* null: a library, of all contexts */
	struct image image;
	unsigned int function_count;
	struct CUfunc_st *functions;
	CUcontext placed; /* the location of its variables and code; null: not loaded yet */
	CUdeviceptr code; /* with constants and unnamed data */
	CUmodule next;
};

CUresult module_new(CUmodule *result, CUcontext context, const void *data);
void module_free(CUmodule module);
/* Allocate what the module needs on the context's card, unless it is allocated already. */
CUresult module_place(CUmodule module, CUcontext context);
bool module_valid(CUmodule module);
bool function_valid(CUfunction function);
CUfunction module_function(CUmodule module, const char *name);
CUresult module_variable(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes);

#endif
