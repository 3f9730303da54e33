/* SPDX-License-Identifier: Apache-2.0
 *
 * The slice's memory. The real call comes first: it checks the arguments.
 */
#include "cards.h"
#include "quota/usage.h"

NVML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory))
{
	unsigned card;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);

	if (result == NVML_SUCCESS)
		result = card_of_device(&card, device);
	if (result != NVML_SUCCESS)
		return result;
	memory->total = limit_bytes(card);
	memory->used = usage_of(card);
	memory->free = free_bytes(memory->total, memory->used);
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory))
{
	unsigned card;
	nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);

	if (result == NVML_SUCCESS)
		result = card_of_device(&card, device);
	if (result != NVML_SUCCESS)
		return result;
	memory->total = limit_bytes(card);
	memory->reserved = 0; /* what the driver keeps for itself is not of the slice */
	memory->used = usage_of(card);
	memory->free = free_bytes(memory->total, memory->used);
	return NVML_SUCCESS;
}
