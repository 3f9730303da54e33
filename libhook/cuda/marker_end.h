/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts end with markers in them. Before the driver is asked to end one nobody looks at its
 * events any more; after its answer they are forgotten, or looked at again:
 *
 *     markers_before_end(card, context, true);
 *     CUresult result = REAL(cuCtxDestroy_v2)(context);
 *     markers_after_end(card, context, result == CUDA_SUCCESS);
 */
#ifndef GPUSHARE_MARKER_END_H
#define GPUSHARE_MARKER_END_H

#include <stdbool.h>

#include "filter.h"

/* Of a context that the program did not make, the primary one of the card, `context` is NULL. One
 * that will surely end gives its events back; of one that others may hold they are kept. */
void markers_before_end(unsigned card, CUcontext context, bool surely);
void markers_after_end(unsigned card, CUcontext context, bool has_ended);

/* Before the program waits for work to end: what is behind the last marker of a stream gets one. */
void markers_before_wait(void);
/* After it: what has ended is seen to, before the program goes on. */
void markers_after_wait(void);

#endif
