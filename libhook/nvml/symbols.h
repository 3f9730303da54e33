/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that the library exports, with the place of the real library's function.
 */
#ifndef GPUSHARE_NVML_SYMBOLS_H
#define GPUSHARE_NVML_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

#include "trampoline.h"

#define SYMBOL_BYTES 64

#pragma GCC visibility push(hidden)
extern const char symbols[][SYMBOL_BYTES];
extern const struct trampoline symbol_addresses[]; /* of each of `symbols` */
extern const uint32_t symbol_hashes[];		   /* of each of `symbols`, in DT_GNU_HASH */
extern const size_t symbol_count;
#pragma GCC visibility pop

/* Between nvmlInit and nvmlShutdown: the driver's functions look for that before anything else. */
bool library_is_initialized(void);

/* Where the address of the real library's function is. */
static inline void (**symbol_real(size_t index))(void)
{
	return trampoline_at(&symbol_addresses[index].real);
}

#endif
