/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams as arguments of driver functions.
 */
#ifndef GPUSHARE_STREAM_H
#define GPUSHARE_STREAM_H

#include <stdbool.h>

#include "interpose.h"

/* The meaning of a null stream to a function: cuLaunchKernel's or cuLaunchKernel_ptsz's. */
enum null_stream { NULL_IS_LEGACY, NULL_IS_PER_THREAD };

/* Whether the stream is being captured: its work then becomes nodes of a graph, and nothing is
 * allocated, freed or started. */
bool stream_is_captured(CUstream stream, enum null_stream null_stream);

/* Wait until it has finished its work. */
void stream_wait(CUstream stream, enum null_stream null_stream);

#endif
