/* SPDX-License-Identifier: Apache-2.0
 *
 * Every symbol of NVML that no other file defines, weak; see ../unsupported.c.
 */
#define NVML_ERROR_NOT_SUPPORTED 3

void trace(const char *symbol, const char *what);

#define NVML_SYMBOL(symbol, since)                                                                 \
	__attribute__((weak, visibility("default"))) int symbol(void);                             \
	int symbol(void)                                                                           \
	{                                                                                          \
		trace(#symbol, "is not simulated");                                                \
		return NVML_ERROR_NOT_SUPPORTED;                                                   \
	}
#include "table/nvml.inc"
