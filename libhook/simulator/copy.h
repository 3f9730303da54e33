/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kinds of copies share.
 */
#ifndef GPUSHARE_SIMULATOR_COPY_H
#define GPUSHARE_SIMULATOR_COPY_H

#include "memory.h"

/* Card time that moving `bytes` takes, over the link to the host or within the card. */
uint64_t copy_duration(CUcontext context, size_t bytes, bool over_link);

/* After the bytes have moved: give the stream the time that takes, and wait if asked to. */
CUresult copy_finish(CUstream stream, size_t bytes, bool over_link, bool wait);

#endif
