/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: memory that has a handle and no address. Levels of a mipmapped array, and arrays of other
 * interfaces' memory, have no memory of their own.
 */
#ifndef GPUSHARE_CUDA_ARRAY_H
#define GPUSHARE_CUDA_ARRAY_H

#include "filter.h"

/* A context has ended, `card`'s primary one if 0. */
void arrays_end_context(uint64_t context, unsigned card);

void arrays_after_fork_in_child(void);

#endif
