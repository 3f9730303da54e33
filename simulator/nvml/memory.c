/* SPDX-License-Identifier: Apache-2.0
 *
 * How a card's memory is used. `used` and `reserved` add up to the total minus `free`: version 1
 * counts what firmware and driver hold as used.
 */
#include "library.h"

#include <unistd.h>

static uint64_t total_bytes(const struct sim_card *card)
{
	if (card_profile(card)->unified == SIM_UNIFIED_MACHINE)
		return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	return card_profile(card)->memory_bytes / (card_lies(card, SIM_LIE_TOTAL) ? 2 : 1);
}

static bool has_totals(const struct sim_card *card)
{
	const uint32_t unified = card_profile(card)->unified;

	return unified == SIM_OWN_MEMORY || unified == SIM_UNIFIED_MACHINE;
}

static uint64_t used_bytes(struct sim_card *card)
{
	uint64_t used = 0;

	if (card_lies(card, SIM_LIE_USED))
		return 0;
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (!card_has(card, i))
			continue;
		card_look(&device->cards[i]);
		used += atomic_load(&device->cards[i].used_bytes);
		card_unlock(&device->cards[i]);
	}
	return used;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(memory->version == NVML_STRUCTURE_VERSION(nvmlMemory_v2_t, 2),
		NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	REQUIRE(has_totals(card), NVML_ERROR_NOT_SUPPORTED);
	memory->total = total_bytes(card);
	memory->reserved = card_profile(card)->reserved_bytes;
	memory->used = used_bytes(card);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(has_totals(card), NVML_ERROR_NOT_SUPPORTED);
	memory->total = total_bytes(card);
	memory->used = used_bytes(card) + card_profile(card)->reserved_bytes;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

/* Nothing maps memory through the BAR. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(memory, NVML_ERROR_INVALID_ARGUMENT);
	memory->bar1Total = card_profile(card)->bar1_bytes;
	memory->bar1Used = 0;
	memory->bar1Free = memory->bar1Total;
	return NVML_SUCCESS;
}
