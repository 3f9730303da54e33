/* SPDX-License-Identifier: Apache-2.0
 *
 * Partitioned cards (MIG). A card's partitions are written when its file is created, and may be
 * rewritten. An instance is an entry like a card's own, after all cards; each is a GPU instance
 * with one compute instance.
 */
#include "library.h"

static uint32_t parent_of(const struct sim_card *card)
{
	return card_profile(card)->parent;
}

bool card_has(const struct sim_card *card, uint32_t entry)
{
	return &device->cards[entry] == card ||
	       device->profiles[entry].parent == card_index(card) + 1;
}

/* Its position among its card's instances. */
uint32_t instance_index(const struct sim_card *instance)
{
	uint32_t index = 0;

	for (uint32_t i = device->header.card_count; i < card_index(instance); i++)
		index += device->profiles[i].parent == parent_of(instance);
	return index;
}

static bool partitioned(const struct sim_card *card)
{
	for (uint32_t i = device->header.card_count; i < device_entries(); i++) {
		if (device->profiles[i].parent == card_index(card) + 1)
			return true;
	}
	return false;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(current && pending, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->mig_capable && !parent_of(card), NVML_ERROR_NOT_SUPPORTED);
	*current = *pending = partitioned(card) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	*count = card_profile(card)->mig_capable && !parent_of(card) ? SIM_INSTANCES : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(
	nvmlDevice_t handle, unsigned int index, nvmlDevice_t *instance)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(instance, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->mig_capable && !parent_of(card), NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(index < SIM_INSTANCES, NVML_ERROR_INVALID_ARGUMENT);
	for (uint32_t i = device->header.card_count; i < device_entries(); i++) {
		if (device->profiles[i].parent == card_index(card) + 1 && device_has_node(i) &&
			instance_index(&device->cards[i]) == index) {
			*instance = library_handle(i);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
	nvmlDevice_t instance, nvmlDevice_t *handle)
{
	REQUIRE_CARD(card, instance);
	REQUIRE(handle && parent_of(card), NVML_ERROR_INVALID_ARGUMENT);
	*handle = library_handle(parent_of(card) - 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_instance)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(is_instance, NVML_ERROR_INVALID_ARGUMENT);
	*is_instance = parent_of(card) != 0;
	return NVML_SUCCESS;
}

/* Of an instance alone. */
#define NUMBER(name, value)                                                                        \
	nvmlReturn_t name(nvmlDevice_t handle, unsigned int *number)                               \
	{                                                                                          \
		REQUIRE_CARD(card, handle);                                                        \
		REQUIRE(number, NVML_ERROR_INVALID_ARGUMENT);                                      \
		REQUIRE(parent_of(card), NVML_ERROR_NOT_SUPPORTED);                                \
		*number = value;                                                                   \
		return NVML_SUCCESS;                                                               \
	}

NUMBER(nvmlDeviceGetGpuInstanceId, card_profile(card)->gpu_instance)
NUMBER(nvmlDeviceGetComputeInstanceId, card_profile(card)->compute_instance)
