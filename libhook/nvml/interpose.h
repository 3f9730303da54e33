/* SPDX-License-Identifier: Apache-2.0
 *
 * How an entry point of NVML is mediated: as in cuda/interpose.h.
 */
#ifndef GPUSHARE_NVML_INTERPOSE_H
#define GPUSHARE_NVML_INTERPOSE_H

#include "nvml_api.h"

#pragma GCC visibility push(hidden)
#define NVML_SYMBOL(symbol, since) extern void (*real_##symbol)(void);
#include "table/nvml.inc"
#undef NVML_SYMBOL
#pragma GCC visibility pop

#define NVML(symbol, parameters)                                                                   \
	__attribute__((visibility("default"))) nvmlReturn_t symbol parameters

/* The real library's function. If the library lacks it, it returns
 * NVML_ERROR_FUNCTION_NOT_FOUND. */
#define REAL(symbol) ((__typeof__(&symbol))real_##symbol)

#endif
