/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each takes memory of its own on its card, and takes its buffers along when it ends.
 */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include <stdbool.h>

#include "filter.h"

/* The context with which memory allocated now by this thread will end: 0 is the primary one. A
 * number that no other context of the process is ever given, unlike a handle: as soon as the driver
 * has ended one, another thread's new context may have the handle of it. */
uint64_t context_owner(void);

/* `context` has ended, `card`'s primary one if 0: give back what it took along. */
void context_end_memory(uint64_t context, unsigned card);

/* Whether the program made it, with cuCtxCreate. */
bool context_is_created(CUcontext context);

void contexts_after_fork_in_child(void);

#endif
