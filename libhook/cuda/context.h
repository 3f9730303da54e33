/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each takes memory of its own on its card, and takes its buffers along when it ends.
 */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include "filter.h"

/* The context with which memory allocated now by this thread will end: NULL is the primary one. */
CUcontext context_owner(void);

/* `context` has ended, `card`'s primary one if NULL: give back what it took along. */
void context_end_memory(CUcontext context, unsigned card);

void contexts_after_fork_in_child(void);

#endif
