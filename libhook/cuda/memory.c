/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory, charged as the driver takes it. What is free of the last block that small buffers
 * share is in the overhead that the daemon measures: less than a block for each context, unless
 * buffers are freed here and there.
 */
#include "memory.h"

#include <stdbool.h>

#include "charge.h"
#include "external.h"
#include "quota/ledger.h"

/* A card's memory is given out in blocks of 2 MiB (cuMemGetAllocationGranularity of every card so
 * far). Buffers of up to half a block share blocks, where they begin at multiples of 512 bytes;
 * larger ones have blocks of their own. */
#define BLOCK_BYTES (UINT64_C(2) << 20)
#define SHARED_BYTES (BLOCK_BYTES / 2)
#define SHARED_GRANULE_BYTES 512

/* A row's length is rounded up to a multiple of this, or of a power of two above it
 * (CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT and measured results: never below). */
#define PITCH_GUESS 512

uint64_t linear_bytes(uint64_t asked)
{
	uint64_t granule = asked <= SHARED_BYTES ? SHARED_GRANULE_BYTES : BLOCK_BYTES;

	return asked <= UINT64_MAX - granule ? (asked + granule - 1) / granule * granule
					     : UINT64_MAX;
}

/* Out of the way of the most frequent of all calls. */
__attribute__((noinline, cold)) static CUresult alloc_again(
	const struct charge *charge, CUdeviceptr *given, size_t bytes)
{
	return INSIST_AGAIN(charge->card, charge->bytes, REAL(cuMemAlloc_v2)(given, bytes));
}

CUDA(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
{
	struct charge charge;
	CUdeviceptr given = 0;

	if (!pointer)
		return REAL(cuMemAlloc_v2)(pointer, bytes);
	CUresult result =
		charge_reserve_current(&charge, GPUSHARE_KIND_BUFFER, linear_bytes(bytes));

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc_v2)(&given, bytes);
	if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))
		result = alloc_again(&charge, &given, bytes);
	result = charge_settle(&charge, result, &given);
	if (result == CUDA_SUCCESS)
		*pointer = given;
	return result;
}

/* The interface of CUDA before 3.2, with addresses of 32 bits. */
CUDA(cuMemAlloc, (unsigned int *pointer, unsigned int bytes))
{
	struct charge charge;
	unsigned int given = 0;

	if (!pointer)
		return REAL(cuMemAlloc)(pointer, bytes);
	CUresult result =
		charge_reserve_current(&charge, GPUSHARE_KIND_BUFFER, linear_bytes(bytes));

	if (result != CUDA_SUCCESS)
		return result;
	result = CHARGED(charge, REAL(cuMemAlloc)(&given, bytes));
	const CUdeviceptr handle = given;
	result = charge_settle(&charge, result, &handle);
	if (result == CUDA_SUCCESS)
		*pointer = given;
	return result;
}

/* The pitch is the driver's choice: reserve what it most likely takes, then what it took. */
static CUresult reserve_pitched(struct charge *charge, size_t width_bytes, size_t height)
{
	size_t pitch, bytes;

	if (__builtin_add_overflow(width_bytes, PITCH_GUESS - 1, &pitch) ||
		__builtin_mul_overflow(pitch / PITCH_GUESS * PITCH_GUESS, height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return charge_reserve_current(charge, GPUSHARE_KIND_BUFFER, linear_bytes(bytes));
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
	CUdeviceptr given = 0;
	size_t row = 0;

	if (!pointer || !pitch)
		return REAL(cuMemAllocPitch_v2)(pointer, pitch, width_bytes, height, element_bytes);
	CUresult result = reserve_pitched(&charge, width_bytes, height);

	if (result != CUDA_SUCCESS)
		return result;
	result = CHARGED(
		charge, REAL(cuMemAllocPitch_v2)(&given, &row, width_bytes, height, element_bytes));
	if (result == CUDA_SUCCESS && !adjust(&charge, linear_bytes((uint64_t)row * height))) {
		REAL(cuMemFree_v2)(given);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	result = charge_settle(&charge, result, &given);
	if (result == CUDA_SUCCESS) {
		*pointer = given;
		*pitch = row;
	}
	return result;
}

CUDA(cuMemAllocPitch, (unsigned int *pointer, unsigned int *pitch, unsigned int width_bytes,
			      unsigned int height, unsigned int element_bytes))
{
	struct charge charge;
	unsigned int given = 0, row = 0;

	if (!pointer || !pitch)
		return REAL(cuMemAllocPitch)(pointer, pitch, width_bytes, height, element_bytes);
	CUresult result = reserve_pitched(&charge, width_bytes, height);

	if (result != CUDA_SUCCESS)
		return result;
	result = CHARGED(
		charge, REAL(cuMemAllocPitch)(&given, &row, width_bytes, height, element_bytes));
	if (result == CUDA_SUCCESS && !adjust(&charge, linear_bytes((uint64_t)row * height))) {
		REAL(cuMemFree)(given);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	const CUdeviceptr handle = given;
	result = charge_settle(&charge, result, &handle);
	if (result == CUDA_SUCCESS) {
		*pointer = given;
		*pitch = row;
	}
	return result;
}

CUDA(cuMemFree_v2, (CUdeviceptr pointer))
{
	struct allocation charged;

	if (allocations_take(&buffers, pointer, &charged))
		return charge_free(&buffers, &charged, REAL(cuMemFree_v2)(pointer));
	return external_free_buffer(pointer, REAL(cuMemFree_v2));
}

CUDA(cuMemFree, (unsigned int pointer))
{
	return CHARGE_FREE(pointer, REAL(cuMemFree)(pointer));
}
