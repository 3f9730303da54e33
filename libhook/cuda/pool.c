/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that streams order. It comes from the pool of the stream's device and belongs to no
 * context; what a pool keeps beyond it is in the overhead that the daemon measures.
 *
 * While a stream is captured nothing is allocated or freed: the calls make nodes of a graph, and
 * what that takes when it is launched is in the measured overhead too.
 */
#include <stdbool.h>

#include "cards.h"
#include "charge.h"
#include "quota/ledger.h"

/* `asking` is the form whose default stream is the caller's. The legacy one is never captured. */
static bool is_captured(
	CUresult (*asking)(CUstream stream, CUstreamCaptureStatus *status), CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (stream == CU_STREAM_LEGACY || (!stream && asking == REAL(cuStreamIsCapturing)))
		return false;
	return asking(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult charge_reserve_stream(struct charge *charge, CUstream stream, uint64_t bytes)
{
	unsigned card;
	CUresult result = card_of_stream(&card, stream);

	return result == CUDA_SUCCESS ? charge_reserve(charge, GPUSHARE_KIND_POOL, card, bytes)
				      : result;
}

CUDA(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
	struct charge charge;

	if (is_captured(REAL(cuStreamIsCapturing), stream))
		return REAL(cuMemAllocAsync)(pointer, bytes, stream);
	CUresult result = charge_reserve_stream(&charge, stream, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync)(pointer, bytes, stream);
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
	struct charge charge;

	if (is_captured(REAL(cuStreamIsCapturing_ptsz), stream))
		return REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream);
	CUresult result = charge_reserve_stream(&charge, stream, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream);
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemAllocFromPoolAsync,
	(CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
{
	struct charge charge;

	if (is_captured(REAL(cuStreamIsCapturing), stream))
		return REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
	CUresult result = charge_reserve_stream(&charge, stream, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemAllocFromPoolAsync_ptsz,
	(CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
{
	struct charge charge;

	if (is_captured(REAL(cuStreamIsCapturing_ptsz), stream))
		return REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
	CUresult result = charge_reserve_stream(&charge, stream, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))
{
	if (is_captured(REAL(cuStreamIsCapturing), stream))
		return REAL(cuMemFreeAsync)(pointer, stream);
	return CHARGE_FREE(pointer, REAL(cuMemFreeAsync)(pointer, stream));
}

CUDA(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream))
{
	if (is_captured(REAL(cuStreamIsCapturing_ptsz), stream))
		return REAL(cuMemFreeAsync_ptsz)(pointer, stream);
	return CHARGE_FREE(pointer, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}
