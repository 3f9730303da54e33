/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each takes memory of its own on its card, and frees its buffers when it is destroyed.
 */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include <stdbool.h>

#include "interpose.h"

/* The context with which memory that this thread allocates now will end: 0 is the primary one. The
 * number is never reused in the process, unlike a handle: as soon as the driver has destroyed a
 * context, another thread's new context may have its handle. */
uint64_t context_owner(void);

/* `context` was destroyed, the primary one of `card` if 0: release everything that ended with
 * it. */
void context_end_memory(uint64_t context, unsigned card);

/* Whether the program created it with cuCtxCreate. */
bool context_is_created(CUcontext context);

void contexts_after_fork_in_child(void);

#endif
