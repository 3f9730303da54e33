/* SPDX-License-Identifier: Apache-2.0
 *
 * Partitioned cards (MIG). A card's partitions are written when its file is created, and may be
 * rewritten. An instance is an entry like a card's own, after all cards; each is a GPU instance
 * with one compute instance.
 */
#include "library.h"

#include <stdio.h>

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

static const struct sim_mig_profile *kind_of(
	const struct sim_card *card, unsigned int number, bool by_id)
{
	for (int i = 0; i < SIM_MIG_PROFILES; i++) {
		const struct sim_mig_profile *kind = &card_profile(card)->mig[i];

		if (kind->count > 0 && (by_id ? kind->id : kind->nvml) == number)
			return kind;
	}
	return NULL;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(
	nvmlDevice_t handle, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(info, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->mig_capable && !parent_of(card), NVML_ERROR_NOT_SUPPORTED);

	const struct sim_mig_profile *kind = kind_of(card, profile, false);

	REQUIRE(kind, NVML_ERROR_NOT_SUPPORTED);
	*info = (nvmlGpuInstanceProfileInfo_t){.id = kind->id,
		.sliceCount = kind->slices,
		.instanceCount = kind->count,
		.multiprocessorCount = kind->multiprocessors,
		.copyEngineCount = kind->slices,
		.memorySizeMB = kind->memory_mib};
	return NVML_SUCCESS;
}

/* As v1, with a name. The caller names the version that it has. */
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(
	nvmlDevice_t handle, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	nvmlGpuInstanceProfileInfo_t plain;

	REQUIRE(info, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(info->version == NVML_STRUCTURE_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2),
		NVML_ERROR_ARGUMENT_VERSION_MISMATCH);

	nvmlReturn_t status = nvmlDeviceGetGpuInstanceProfileInfo(handle, profile, &plain);
	struct sim_card *card;

	REQUIRE(status == NVML_SUCCESS, status);
	status = library_card(handle, &card);
	REQUIRE(status == NVML_SUCCESS, status);
	*info = (nvmlGpuInstanceProfileInfo_v2_t){.version = info->version,
		.id = plain.id,
		.sliceCount = plain.sliceCount,
		.instanceCount = plain.instanceCount,
		.multiprocessorCount = plain.multiprocessorCount,
		.copyEngineCount = plain.copyEngineCount,
		.memorySizeMB = plain.memorySizeMB};
	snprintf(info->name, sizeof(info->name), "MIG %s", kind_of(card, profile, false)->name);
	return NVML_SUCCESS;
}

/* Only of a partitioned card: nvml.h, "If the device doesn't have MIG mode enabled". */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle,
	unsigned int profile_id, nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(partitioned(card), NVML_ERROR_NOT_SUPPORTED);

	const struct sim_mig_profile *kind = kind_of(card, profile_id, true);
	const unsigned int room = placements ? *count : 0;
	unsigned int found = 0;

	REQUIRE(kind, NVML_ERROR_NOT_SUPPORTED);
	for (unsigned int start = 0; start < 32; start++) {
		if (!(kind->starts >> start & 1))
			continue;
		if (found < room)
			placements[found] = (nvmlGpuInstancePlacement_t){start, kind->size};
		found++;
	}
	*count = found;
	REQUIRE(!placements || found <= room, NVML_ERROR_INSUFFICIENT_SIZE);
	return NVML_SUCCESS;
}

/* The caller's array has room for as many as the kind's most. */
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned int profile_id,
	nvmlGpuInstance_t *instances, unsigned int *count)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(instances && count, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(partitioned(card), NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(kind_of(card, profile_id, true), NVML_ERROR_NOT_SUPPORTED);
	*count = 0;
	for (uint32_t i = device->header.card_count; i < device_entries(); i++) {
		if (device->profiles[i].parent == card_index(card) + 1 &&
			device->profiles[i].mig_profile == profile_id)
			instances[(*count)++] = (nvmlGpuInstance_t)(void *)library_handle(i);
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
	REQUIRE_CARD(instance, (nvmlDevice_t)(void *)handle);
	REQUIRE(info && parent_of(instance), NVML_ERROR_INVALID_ARGUMENT);

	const struct sim_profile *profile = card_profile(instance);
	const struct sim_mig_profile *kind = kind_of(instance, profile->mig_profile, true);

	*info = (nvmlGpuInstanceInfo_t){.device = library_handle(profile->parent - 1),
		.id = profile->gpu_instance,
		.profileId = profile->mig_profile,
		.placement = {profile->mig_start, kind ? kind->size : 0}};
	return NVML_SUCCESS;
}
