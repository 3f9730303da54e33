/* SPDX-License-Identifier: Apache-2.0
 *
 * Every symbol of the driver that no other file defines: present, so that programs link and look
 * it up, and honest. Weak, so that writing a function of that name elsewhere is all it takes.
 * The prototypes of these are not needed and not known here.
 */
#define CUDA_ERROR_NOT_SUPPORTED 801

void trace_unsupported(const char *symbol);

#define CUDA_SYMBOL(symbol, name, version, stream)                                                 \
	__attribute__((weak, visibility("default"))) int symbol(void);                             \
	int symbol(void)                                                                           \
	{                                                                                          \
		trace_unsupported(#symbol);                                                        \
		return CUDA_ERROR_NOT_SUPPORTED;                                                   \
	}
#include "../table/cuda.inc"
