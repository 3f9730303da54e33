/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the kinds of copies.
 */
#ifndef GPUSHARE_SIMULATOR_COPY_H
#define GPUSHARE_SIMULATOR_COPY_H

#include "memory.h"

/* The card time of moving `bytes`, over the link to the host or within the card. */
uint64_t copy_duration(CUcontext context, size_t bytes, bool over_link);

/* A copy of a contiguous range, and one of rows and slices, in a stream or into its capture. */
CUresult copy_run(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle,
	enum stream_flavour flavour, bool wait);
CUresult copy_box(
	const CUDA_MEMCPY3D *copy, CUstream handle, enum stream_flavour flavour, bool wait);

/* The contents of an address that a copy names: host addresses stand for themselves. */
void *copy_contents(CUdeviceptr pointer, size_t bytes, bool writing);

/* After the bytes have moved: add the card time to the stream, and wait if requested. */
CUresult copy_finish(CUstream stream, size_t bytes, bool over_link, bool wait);
/* In a capture: a node that takes the card time. */
CUresult copy_capture(CUstream stream, size_t bytes, bool over_link, bool wait);

#endif
