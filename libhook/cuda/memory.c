/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory. Charged as asked for: what the driver rounds small buffers up by is in the
 * overhead that the daemon measures.
 */
#include <stdbool.h>

#include "charge.h"
#include "quota/ledger.h"

/* A row's length is rounded up to a multiple of this, or of a power of two above it
 * (CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT and measured results: never below). */
#define PITCH_GUESS 512

CUDA(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
{
	struct charge charge;
	CUresult result = charge_reserve_current(&charge, GPUSHARE_KIND_BUFFER, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	return charge_settle(&charge, REAL(cuMemAlloc_v2)(pointer, bytes), pointer);
}

/* The interface of CUDA before 3.2, with addresses of 32 bits. */
CUDA(cuMemAlloc, (unsigned int *pointer, unsigned int bytes))
{
	struct charge charge;
	CUresult result = charge_reserve_current(&charge, GPUSHARE_KIND_BUFFER, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc)(pointer, bytes);
	CUdeviceptr handle = result == CUDA_SUCCESS ? *pointer : 0;
	return charge_settle(&charge, result, &handle);
}

CUDA(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags))
{
	struct charge charge;
	CUresult result = charge_reserve_current(&charge, GPUSHARE_KIND_MANAGED, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
	return charge_settle(&charge, result, pointer);
}

/* The pitch is the driver's choice: reserve what it most likely takes, then what it took. */
static CUresult reserve_pitched(struct charge *charge, size_t width_bytes, size_t height)
{
	size_t pitch, bytes;

	if (__builtin_add_overflow(width_bytes, PITCH_GUESS - 1, &pitch) ||
		__builtin_mul_overflow(pitch / PITCH_GUESS * PITCH_GUESS, height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return charge_reserve_current(charge, GPUSHARE_KIND_BUFFER, bytes);
}

/* False if it took more and the quota has no room for that. */
static bool adjust(struct charge *charge, uint64_t bytes)
{
	if (bytes > charge->bytes &&
		!ledger_reserve(charge->card, charge->kind, bytes - charge->bytes))
		return false;
	if (bytes < charge->bytes)
		ledger_release(charge->card, charge->kind, charge->bytes - bytes);
	charge->bytes = bytes;
	return true;
}

CUDA(cuMemAllocPitch_v2, (CUdeviceptr * pointer, size_t *pitch, size_t width_bytes, size_t height,
				 unsigned int element_bytes))
{
	struct charge charge;
	CUresult result = reserve_pitched(&charge, width_bytes, height);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width_bytes, height, element_bytes);
	if (result == CUDA_SUCCESS && !adjust(&charge, (uint64_t)*pitch * height)) {
		REAL(cuMemFree_v2)(*pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return charge_settle(&charge, result, pointer);
}

CUDA(cuMemAllocPitch, (unsigned int *pointer, unsigned int *pitch, unsigned int width_bytes,
			      unsigned int height, unsigned int element_bytes))
{
	struct charge charge;
	CUresult result = reserve_pitched(&charge, width_bytes, height);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocPitch)(pointer, pitch, width_bytes, height, element_bytes);
	if (result == CUDA_SUCCESS && !adjust(&charge, (uint64_t)*pitch * height)) {
		REAL(cuMemFree)(*pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUdeviceptr handle = result == CUDA_SUCCESS ? *pointer : 0;
	return charge_settle(&charge, result, &handle);
}

CUDA(cuMemFree_v2, (CUdeviceptr pointer))
{
	return CHARGE_FREE(pointer, REAL(cuMemFree_v2)(pointer));
}

CUDA(cuMemFree, (unsigned int pointer))
{
	return CHARGE_FREE(pointer, REAL(cuMemFree)(pointer));
}
