/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that the library exports, as a table without a pointer; trampoline.h says why.
 */
#ifndef GPUSHARE_SYMBOLS_H
#define GPUSHARE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "trampoline.h"

enum symbol_stream { SYMBOL_NONE, SYMBOL_LEGACY, SYMBOL_PER_THREAD };

struct symbol {
	char symbol[56];    /* as exported */
	uint8_t name_bytes; /* so much of it is the name that cuGetProcAddress is called with */
	uint8_t stream;	    /* enum symbol_stream: the default stream that it uses */
	uint16_t version;   /* the version from which `symbol` stands for its name */
};

#pragma GCC visibility push(hidden)
extern const struct symbol symbols[];
extern const struct trampoline symbol_addresses[]; /* of each of `symbols` */
extern const uint32_t symbol_hashes[];		   /* of each of `symbols`, in DT_GNU_HASH */
extern const size_t symbol_count;
#pragma GCC visibility pop

/* As strcmp of the symbol's name and `name`. */
static inline int symbol_compare(const struct symbol *symbol, const char *name)
{
	const int order = strncmp(symbol->symbol, name, symbol->name_bytes);

	return order != 0 || name[symbol->name_bytes] == '\0' ? order : -1;
}

/* This library's function: a trampoline or a mediating function. */
static inline void *symbol_exported(const struct symbol *symbol)
{
	return trampoline_at(&symbol_addresses[symbol - symbols].exported);
}

static inline bool symbol_is_mediated(const struct symbol *symbol)
{
	return symbol_exported(symbol) != trampoline_at(&symbol_addresses[symbol - symbols].own);
}

/* Where the address of the driver's function is. */
static inline void (**symbol_real(const struct symbol *symbol))(void)
{
	return trampoline_at(&symbol_addresses[symbol - symbols].real);
}

/* Whether `real` is a function of the driver: false if the driver is too old for the symbol. */
bool driver_defines(void (*real)(void));

static inline bool driver_has(const struct symbol *symbol)
{
	return driver_defines(*symbol_real(symbol));
}

#endif
