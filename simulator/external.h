/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers within memory of another API, mapped into this process. The space's latch must be held.
 */
#ifndef GPUSHARE_SIMULATOR_EXTERNAL_H
#define GPUSHARE_SIMULATOR_EXTERNAL_H

#include "memory.h"

/* Unmap a buffer: what cuMemFree does with one. */
void external_give(struct region *region);

/* Everything that was imported in a context; takes the latch itself. */
void external_forget_context(CUcontext context);

#endif
