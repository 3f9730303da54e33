/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory.
 */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include <stdint.h>

/* What the driver takes of the card for a buffer of so many bytes, beside what is left free of the
 * block that small ones share. UINT64_MAX if that does not fit into 64 bits. */
uint64_t linear_bytes(uint64_t asked);

#endif
