/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations that other processes open by an IPC handle: what was exported, at its region, and
 * what was opened. The space's latch must be held.
 */
#ifndef GPUSHARE_SIMULATOR_IPC_H
#define GPUSHARE_SIMULATOR_IPC_H

#include "memory.h"

/* Of a region that goes: its memory is no longer this process's, and its contents are its alone. */
void ipc_forget_region(struct region *region);

/* The opened allocation that a pointer into an opened region lies in. */
bool ipc_find(struct region *region, CUdeviceptr pointer, struct extent *extent);

/* Close what was opened in a context; takes the latch itself. */
void ipc_forget_context(CUcontext context);

#endif
