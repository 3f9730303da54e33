/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream as a function of the driver takes it.
 */
#ifndef GPUSHARE_STREAM_H
#define GPUSHARE_STREAM_H

#include <stdbool.h>

#include "filter.h"

/* What a null stream is to a function: cuLaunchKernel's or cuLaunchKernel_ptsz's. */
enum null_stream { NULL_IS_LEGACY, NULL_IS_PER_THREAD };

/* While it is, what it is given makes nodes of a graph: nothing is allocated, freed or started. */
bool stream_is_captured(CUstream stream, enum null_stream null_stream);

/* Until it has done what it was given. */
void stream_wait(CUstream stream, enum null_stream null_stream);

#endif
