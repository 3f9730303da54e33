/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory, charged as the driver takes it. The free rest of the last block that small buffers
 * share is in the overhead that the daemon measures: less than a block for each context, unless
 * buffers are freed in between.
 */
#include "memory.h"

#include <stdbool.h>

#include "charge.h"
#include "external.h"
#include "quota/ledger.h"
#include "quota/pages.h"

/* NVIDIA's driver allocates a card's memory in blocks of 2 MiB (cuMemGetAllocationGranularity of
 * every card so far). Buffers of up to half a block share blocks, where they start at multiples of
 * 512 bytes; larger ones have blocks of their own. */
#define BLOCK_BYTES (UINT64_C(2) << 20)
#define SHARED_BYTES (BLOCK_BYTES / 2)

/* A row's length is rounded up to a multiple of this, or of a power of two above it
 * (CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT and measurements: never below). */
#define PITCH_GUESS 512

uint64_t linear_bytes(uint64_t requested)
{
	const uint64_t multiple = requested <= SHARED_BYTES ? SHARED_GRANULE_BYTES : BLOCK_BYTES;

	return requested <= UINT64_MAX - multiple ? (requested + multiple - 1) & ~(multiple - 1)
						  : UINT64_MAX;
}

/* Kept out of the way of the most frequent of all calls. */
__attribute__((noinline, cold)) static CUresult alloc_again(
	const struct charge *charge, CUdeviceptr *returned, size_t bytes)
{
	return RETRY_AFTER_OOM(charge->card, charge->bytes, REAL(cuMemAlloc_v2)(returned, bytes));
}

CUDA(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
{
	struct charge charge;
	CUdeviceptr returned = 0;

	if (!pointer)
		return REAL(cuMemAlloc_v2)(pointer, bytes);
	CUresult result =
		charge_reserve_current(&charge, GPUSHARE_KIND_BUFFER, linear_bytes(bytes));

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc_v2)(&returned, bytes);
	if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))
		result = alloc_again(&charge, &returned, bytes);
	result = charge_settle(&charge, result, &returned);
	if (result == CUDA_SUCCESS)
		*pointer = returned;
	return result;
}

/* The interface before CUDA 3.2, with 32-bit addresses. */
CUDA(cuMemAlloc, (unsigned int *pointer, unsigned int bytes))
{
	struct charge charge;
	unsigned int returned = 0;

	if (!pointer)
		return REAL(cuMemAlloc)(pointer, bytes);
	CUresult result =
		charge_reserve_current(&charge, GPUSHARE_KIND_BUFFER, linear_bytes(bytes));

	if (result != CUDA_SUCCESS)
		return result;
	result = CHARGED(charge, REAL(cuMemAlloc)(&returned, bytes));
	const CUdeviceptr handle = returned;
	result = charge_settle(&charge, result, &handle);
	if (result == CUDA_SUCCESS)
		*pointer = returned;
	return result;
}

/* The driver chooses the pitch: reserve what it most likely takes, then what it took. */
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

#define ALLOC_PITCH(symbol, free_symbol, pointer_type, size_type)                                  \
	CUDA(symbol, (pointer_type * pointer, size_type * pitch, size_type width_bytes,            \
			     size_type height, unsigned int element_bytes))                        \
	{                                                                                          \
		struct charge charge;                                                              \
		pointer_type returned = 0;                                                         \
		size_type row = 0;                                                                 \
		if (!pointer || !pitch)                                                            \
			return REAL(symbol)(pointer, pitch, width_bytes, height, element_bytes);   \
		CUresult result = reserve_pitched(&charge, width_bytes, height);                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = CHARGED(charge,                                                           \
			REAL(symbol)(&returned, &row, width_bytes, height, element_bytes));        \
		if (result == CUDA_SUCCESS &&                                                      \
			!adjust(&charge, linear_bytes((uint64_t)row * height))) {                  \
			REAL(free_symbol)(returned);                                               \
			result = CUDA_ERROR_OUT_OF_MEMORY;                                         \
		}                                                                                  \
		const CUdeviceptr handle = returned;                                               \
		result = charge_settle(&charge, result, &handle);                                  \
		if (result == CUDA_SUCCESS) {                                                      \
			*pointer = returned;                                                       \
			*pitch = row;                                                              \
		}                                                                                  \
		return result;                                                                     \
	}

ALLOC_PITCH(cuMemAllocPitch_v2, cuMemFree_v2, CUdeviceptr, size_t)
ALLOC_PITCH(cuMemAllocPitch, cuMemFree, unsigned int, unsigned int)

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
