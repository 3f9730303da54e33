/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a context holds above its initial limits because of cuCtxSetLimit.
 */
#ifndef GPUSHARE_CONTEXT_LIMIT_H
#define GPUSHARE_CONTEXT_LIMIT_H

#include "interpose.h"

/* A context was destroyed: the primary one of `card` if 0. */
void limits_end_context(uint64_t context, unsigned card);

void limits_after_fork_in_child(void);

#endif
