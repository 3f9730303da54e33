/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations that other processes open by an IPC handle: exported ones by their region, and opened
 * ones. The space's latch must be held.
 */
#ifndef GPUSHARE_SIMULATOR_IPC_H
#define GPUSHARE_SIMULATOR_IPC_H

#include "memory.h"

/* For a region that ends: its memory no longer belongs to this process, and its contents become
 * private. */
void ipc_forget_region(struct region *region);

/* The opened allocation that contains a pointer into an opened region. */
bool ipc_find(struct region *region, CUdeviceptr pointer, struct extent *extent);

/* Close what was opened in a context; takes the latch itself. */
void ipc_forget_context(CUcontext context);

#endif
