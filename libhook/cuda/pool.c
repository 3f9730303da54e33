/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that streams order. It comes from the pool of the stream's device and belongs to no
 * context; what a pool keeps beyond it is in the overhead that the daemon measures.
 */
#include "cards.h"
#include "charge.h"

static CUresult charge_reserve_stream(struct charge *charge, CUstream stream, uint64_t bytes)
{
	unsigned card;
	CUresult result = card_of_stream(&card, stream);

	return result == CUDA_SUCCESS ? charge_reserve(charge, card, bytes) : result;
}

CUDA(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
	struct charge charge;
	CUresult result = charge_reserve_stream(&charge, stream, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync)(pointer, bytes, stream);
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
	struct charge charge;
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
	CUresult result = charge_reserve_stream(&charge, stream, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))
{
	return CHARGE_FREE(pointer, REAL(cuMemFreeAsync)(pointer, stream));
}

CUDA(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream))
{
	return CHARGE_FREE(pointer, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}
