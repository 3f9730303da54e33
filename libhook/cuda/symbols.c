/* SPDX-License-Identifier: Apache-2.0
 *
 * The trampolines, the real driver's addresses, and the table of both. The prototypes of
 * cuda_driver.h must not be seen here: as symbols, all functions are alike.
 */
#include "symbols.h"

#include "trampoline.h"

#define CUDA_SYMBOL(symbol, name, version, stream) TRAMPOLINE(symbol)
#include "table/cuda.inc"
#undef CUDA_SYMBOL

#define CUDA_SYMBOL(symbol, name, version, stream)                                                 \
	__attribute__((visibility("default"))) extern void symbol(void);                           \
	__attribute__((visibility("hidden"))) extern void trampoline_##symbol(void);
#include "table/cuda.inc"
#undef CUDA_SYMBOL

const struct symbol symbols[] = {
#define CUDA_SYMBOL(symbol, name, version, stream)                                                 \
	{#symbol, #name, version, SYMBOL_##stream, symbol, trampoline_##symbol, &real_##symbol},
#include "table/cuda.inc"
#undef CUDA_SYMBOL
};

const size_t symbol_count = sizeof(symbols) / sizeof(symbols[0]);
