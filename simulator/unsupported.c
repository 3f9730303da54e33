/* SPDX-License-Identifier: Apache-2.0
 *
 * Every symbol of the driver that no other file defines, so that programs link and find it; it
 * returns an error. The symbols are weak, so that defining a function of that name elsewhere is
 * sufficient. Their prototypes are neither needed nor known here.
 */
#define CUDA_ERROR_NOT_SUPPORTED 801

void trace(const char *symbol, const char *what);

#define CUDA_SYMBOL(symbol, name, version, stream)                                                 \
	__attribute__((weak, visibility("default"))) int symbol(void);                             \
	int symbol(void)                                                                           \
	{                                                                                          \
		trace(#symbol, "is not simulated");                                                \
		return CUDA_ERROR_NOT_SUPPORTED;                                                   \
	}
#include "table/cuda.inc"
