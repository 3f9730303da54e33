/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that another interface or another driver created, imported directly or as part of a
 * buffer.
 */
#ifndef GPUSHARE_EXTERNAL_H
#define GPUSHARE_EXTERNAL_H

#include "interpose.h"

/* Free what may be a buffer in an import: the charge ends with the last of them and the import
 * itself. Return the result of `real`. */
CUresult external_free_buffer(CUdeviceptr pointer, CUresult (*real)(CUdeviceptr pointer));

/* The same for a mipmapped array in an import. */
CUresult external_free_array(CUmipmappedArray array, CUresult (*real)(CUmipmappedArray array));

/* A context was destroyed, the primary one of `card` if 0, and with it its imports. */
void external_end_context(uint64_t context, unsigned card);

void external_before_fork(void);
void external_after_fork_in_parent(void);
void external_after_fork_in_child(void);

#endif
