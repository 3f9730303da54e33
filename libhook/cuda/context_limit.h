/* SPDX-License-Identifier: Apache-2.0
 *
 * What cuCtxSetLimit makes a context hold beyond what it began with.
 */
#ifndef GPUSHARE_CONTEXT_LIMIT_H
#define GPUSHARE_CONTEXT_LIMIT_H

#include "filter.h"

/* A context has ended, `card`'s primary one if 0. */
void limits_end_context(uint64_t context, unsigned card);

void limits_after_fork_in_child(void);

#endif
