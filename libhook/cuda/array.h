/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: memory that has a handle and no address. Levels of a mipmapped array, and arrays in
 * memory of other interfaces, have no memory of their own.
 */
#ifndef GPUSHARE_CUDA_ARRAY_H
#define GPUSHARE_CUDA_ARRAY_H

#include "interpose.h"

/* A context was destroyed: the primary one of `card` if 0. */
void arrays_end_context(uint64_t context, unsigned card);

void arrays_after_fork_in_child(void);

#endif
