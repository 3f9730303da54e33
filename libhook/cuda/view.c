/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's view of the card: the memory of its own quota, and only features that are not
 * refused.
 */
#include "cards.h"
#include "quota/process_table.h"
#include "quota/usage.h"

/* A query for the current device returns the real call's result if there is no context. */
static CUresult view_current(uint64_t *free, uint64_t *total)
{
	CUdevice device;
	unsigned card;
	CUresult result = REAL(cuCtxGetDevice)(&device);

	if (result == CUDA_SUCCESS)
		result = card_of_device(&card, device);
	if (result != CUDA_SUCCESS)
		return result;
	if (process_count() > 1) /* a killed process cannot remove its record */
		process_table_refresh();
	*total = limit_bytes(card);
	*free = free_bytes(*total, counted_bytes(card));
	return CUDA_SUCCESS;
}

static unsigned int clamp(uint64_t bytes)
{
	return bytes < UINT32_MAX ? (unsigned int)bytes : UINT32_MAX;
}

#define MEM_GET_INFO(symbol, size_type, as_size)                                                   \
	CUDA(symbol, (size_type * free, size_type * total))                                        \
	{                                                                                          \
		uint64_t slice_free, slice_total;                                                  \
		CUresult result = view_current(&slice_free, &slice_total);                         \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		if (!free || !total)                                                               \
			return CUDA_ERROR_INVALID_VALUE;                                           \
		*free = as_size(slice_free);                                                       \
		*total = as_size(slice_total);                                                     \
		return CUDA_SUCCESS;                                                               \
	}

MEM_GET_INFO(cuMemGetInfo_v2, size_t, (size_t))
MEM_GET_INFO(cuMemGetInfo, unsigned int, clamp)

/* A device that the tenant was not granted shows its real values: nothing can be allocated on
 * it. */
#define TOTAL_MEM(symbol, size_type, as_size)                                                      \
	CUDA(symbol, (size_type * bytes, CUdevice device))                                         \
	{                                                                                          \
		unsigned card;                                                                     \
		CUresult result = REAL(symbol)(bytes, device);                                     \
		if (result == CUDA_SUCCESS && card_of_device(&card, device) == CUDA_SUCCESS)       \
			*bytes = as_size(limit_bytes(card));                                       \
		return result;                                                                     \
	}

TOTAL_MEM(cuDeviceTotalMem_v2, size_t, (size_t))
TOTAL_MEM(cuDeviceTotalMem, unsigned int, clamp)

/* Programs that query the feature first use an alternative. */
static bool is_refused(CUdevice_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_COUNTED_OPS_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES:
		return true;
	default:
		return false;
	}
}

CUDA(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))
{
	CUresult result = REAL(cuDeviceGetAttribute)(value, attribute, device);

	if (result == CUDA_SUCCESS && is_refused(attribute))
		*value = 0;
	return result;
}
