/* SPDX-License-Identifier: Apache-2.0
 *
 * Destruction of contexts that have timing events. Before the driver destroys a context, the
 * library stops querying its events; after the result, it forgets them or queries them again:
 *
 *     timing_before_context_end(card, context, true);
 *     CUresult result = REAL(cuCtxDestroy_v2)(context);
 *     timing_after_context_end(card, context, result == CUDA_SUCCESS);
 */
#ifndef GPUSHARE_TIMING_CONTEXT_END_H
#define GPUSHARE_TIMING_CONTEXT_END_H

#include <stdbool.h>

#include "interpose.h"

/* `context` is NULL for the card's primary context, which the program did not create. A context
 * that will surely be destroyed gives its events back; if others may hold it, its events are
 * kept. */
void timing_before_context_end(unsigned card, CUcontext context, bool surely);
void timing_after_context_end(unsigned card, CUcontext context, bool has_ended);

/* What a wait shows about the next ones: nothing, or whether it came so soon after its work that
 * its timing events are exact without the meter thread's. */
enum timing_wait { WAIT_OTHER, WAIT_PROMPT, WAIT_LATE };

/* Before the program synchronizes: record a timing event after the last work of each stream. */
enum timing_wait timing_before_wait(void);
/* Afterwards: process what has finished, before the program continues. */
void timing_after_wait(enum timing_wait wait);

#endif
