/* SPDX-License-Identifier: Apache-2.0
 *
 * The trampolines and their table; the prototypes of nvml_api.h must not be seen here.
 */
#include "symbols.h"

#include "trampoline.h"

#define NVML_SYMBOL(symbol) TRAMPOLINE(symbol)
#include "table/nvml.inc"
#undef NVML_SYMBOL

const struct symbol symbols[] = {
#define NVML_SYMBOL(symbol) {#symbol, &real_##symbol},
#include "table/nvml.inc"
#undef NVML_SYMBOL
};

const size_t symbol_count = sizeof(symbols) / sizeof(symbols[0]);
