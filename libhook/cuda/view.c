/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program is told about the card's memory: its own slice.
 */
#include "cards.h"
#include "quota/usage.h"

/* Asking for the current device answers what the real call answers where there is no context. */
static CUresult view_current(uint64_t *free, uint64_t *total)
{
	CUdevice device;
	unsigned card;
	CUresult result = REAL(cuCtxGetDevice)(&device);

	if (result == CUDA_SUCCESS)
		result = card_of_device(&card, device);
	if (result != CUDA_SUCCESS)
		return result;
	*total = limit_bytes(card);
	*free = free_bytes(*total, usage_of(card));
	return CUDA_SUCCESS;
}

static unsigned int clamp(uint64_t bytes)
{
	return bytes < UINT32_MAX ? (unsigned int)bytes : UINT32_MAX;
}

CUDA(cuMemGetInfo_v2, (size_t *free, size_t *total))
{
	uint64_t slice_free, slice_total;

	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = view_current(&slice_free, &slice_total);
	if (result == CUDA_SUCCESS) {
		*free = slice_free;
		*total = slice_total;
	}
	return result;
}

CUDA(cuMemGetInfo, (unsigned int *free, unsigned int *total))
{
	uint64_t slice_free, slice_total;

	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = view_current(&slice_free, &slice_total);
	if (result == CUDA_SUCCESS) {
		*free = clamp(slice_free);
		*total = clamp(slice_total);
	}
	return result;
}

/* A device that is not the tenant's shows the truth: nothing can be allocated on it. */
CUDA(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))
{
	unsigned card;
	CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);

	if (result == CUDA_SUCCESS && card_of_device(&card, device) == CUDA_SUCCESS)
		*bytes = limit_bytes(card);
	return result;
}

CUDA(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))
{
	unsigned card;
	CUresult result = REAL(cuDeviceTotalMem)(bytes, device);

	if (result == CUDA_SUCCESS && card_of_device(&card, device) == CUDA_SUCCESS)
		*bytes = clamp(limit_bytes(card));
	return result;
}
