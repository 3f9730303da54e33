/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that the filter exports, with the address of the real library's.
 */
#ifndef GPUSHARE_NVML_SYMBOLS_H
#define GPUSHARE_NVML_SYMBOLS_H

#include <stddef.h>

struct symbol {
	const char *symbol;
	void (**real)(void);
};

#pragma GCC visibility push(hidden)
extern const struct symbol symbols[];
extern const size_t symbol_count;
#pragma GCC visibility pop

#endif
