/* SPDX-License-Identifier: Apache-2.0
 *
 * The trampolines and their table; the prototypes of nvml_api.h must not be visible here.
 */
#include "symbols.h"

TRAMPOLINE_TABLE(symbol_addresses)
#define NVML_SYMBOL(symbol, since) TRAMPOLINE(symbol_addresses, symbol)
#include "table/nvml.inc"
#undef NVML_SYMBOL

const char symbols[][SYMBOL_BYTES] = {
#define NVML_SYMBOL(symbol, since) #symbol,
#include "table/nvml.inc"
#undef NVML_SYMBOL
};

const uint32_t symbol_hashes[] = {
#define GNU_HASH(hash) hash,
#include "table/nvml_hash.inc"
#undef GNU_HASH
};

_Static_assert(
	sizeof(symbol_hashes) / sizeof(symbol_hashes[0]) == sizeof(symbols) / sizeof(symbols[0]),
	"one of each");

const size_t symbol_count = sizeof(symbols) / sizeof(symbols[0]);
