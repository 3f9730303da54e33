/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that another interface made, or another driver: imported for good or as part of a buffer.
 */
#ifndef GPUSHARE_EXTERNAL_H
#define GPUSHARE_EXTERNAL_H

#include "filter.h"

/* Free what may be a buffer in an import: with the last of them and the import itself its charge
 * ends. Return what `real` does. */
CUresult external_free_buffer(CUdeviceptr pointer, CUresult (*real)(CUdeviceptr pointer));

/* The same for an array of levels in an import. */
CUresult external_free_array(CUmipmappedArray array, CUresult (*real)(CUmipmappedArray array));

/* A context has ended, `card`'s primary one if 0, and took its imports along. */
void external_end_context(uint64_t context, unsigned card);

void external_before_fork(void);
void external_after_fork_in_parent(void);
void external_after_fork_in_child(void);

#endif
