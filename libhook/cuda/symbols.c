/* SPDX-License-Identifier: Apache-2.0
 *
 * The trampolines, the real driver's addresses, and the table of both. The prototypes of
 * cuda_driver.h must not be visible here: as symbols, all functions are alike.
 */
#include "symbols.h"

TRAMPOLINE_TABLE(symbol_addresses)
#define CUDA_SYMBOL(symbol, name, version, stream) WAITING_TRAMPOLINE(symbol_addresses, symbol)
#include "table/cuda.inc"
#undef CUDA_SYMBOL

const struct symbol symbols[] = {
#define CUDA_SYMBOL(symbol, name, version, stream)                                                 \
	{#symbol, sizeof(#name) - 1, SYMBOL_##stream, version},
#include "table/cuda.inc"
#undef CUDA_SYMBOL
};

const uint32_t symbol_hashes[] = {
#define GNU_HASH(hash) hash,
#include "table/cuda_hash.inc"
#undef GNU_HASH
};

_Static_assert(
	sizeof(symbol_hashes) / sizeof(symbol_hashes[0]) == sizeof(symbols) / sizeof(symbols[0]),
	"one of each");

const size_t symbol_count = sizeof(symbols) / sizeof(symbols[0]);
