/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that the filter exports, as a table.
 */
#ifndef GPUSHARE_SYMBOLS_H
#define GPUSHARE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

enum symbol_stream { SYMBOL_NONE, SYMBOL_LEGACY, SYMBOL_PER_THREAD };

struct symbol {
	const char *symbol;	   /* as exported */
	const char *name;	   /* as cuGetProcAddress is asked for it */
	int version;		   /* from which `symbol` answers to `name` */
	enum symbol_stream stream; /* which default stream it means */
	void (*exported)(void);	   /* ours: a trampoline or a function that mediates */
	void (*trampoline)(void);  /* where `exported` points if nobody mediates */
	void (**real)(void);	   /* the driver's */
};

#pragma GCC visibility push(hidden)
extern const struct symbol symbols[];
extern const size_t symbol_count;
#pragma GCC visibility pop

static inline bool symbol_is_mediated(const struct symbol *symbol)
{
	return symbol->exported != symbol->trampoline;
}

/* False where the driver behind the filter is too old for the symbol. */
bool driver_has(const struct symbol *symbol);

#endif
