/* SPDX-License-Identifier: Apache-2.0
 *
 * The container's memory. The real call comes first: it checks the arguments.
 */
#include "cards.h"
#include "quota/usage.h"
#include "tenant_processes.h"

static uint64_t used_bytes(unsigned card)
{
	return free_bytes(counted_bytes(card), ended_bytes(card));
}

static nvmlReturn_t show_slice(nvmlReturn_t result, nvmlDevice_t device, nvmlMemory_t *memory)
{
	unsigned card;

	if (result == NVML_SUCCESS)
		result = card_of_device(&card, device);
	if (result != NVML_SUCCESS)
		return result;
	memory->total = limit_bytes(card);
	memory->used = used_bytes(card);
	memory->free = free_bytes(memory->total, memory->used);
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory))
{
	return show_slice(REAL(nvmlDeviceGetMemoryInfo)(device, memory), device, memory);
}

NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage, (nvmlDevice_t device, nvmlMemory_t *memory))
{
	return show_slice(
		REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, memory), device, memory);
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
	memory->reserved =
		0; /* memory that the driver reserves for itself is not part of the quota */
	memory->used = used_bytes(card);
	memory->free = free_bytes(memory->total, memory->used);
	return NVML_SUCCESS;
}

#define ATTRIBUTES(symbol)                                                                         \
	NVML(symbol, (nvmlDevice_t device, nvmlDeviceAttributes_t * attributes))                   \
	{                                                                                          \
		unsigned card;                                                                     \
		nvmlReturn_t result = REAL(symbol)(device, attributes);                            \
		if (result == NVML_SUCCESS)                                                        \
			result = card_of_device(&card, device);                                    \
		if (result == NVML_SUCCESS)                                                        \
			attributes->memorySizeMB = limit_bytes(card) >> 20;                        \
		return result;                                                                     \
	}

ATTRIBUTES(nvmlDeviceGetAttributes)
ATTRIBUTES(nvmlDeviceGetAttributes_v2)
