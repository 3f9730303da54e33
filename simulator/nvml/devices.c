/* SPDX-License-Identifier: Apache-2.0
 *
 * The cards and their properties.
 */
#include "library.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* A handle points at the card's profile: unlike any other address of the process. */
nvmlDevice_t library_handle(uint32_t index)
{
	return (nvmlDevice_t)(void *)&device->profiles[index];
}

/* Late, or wrong, as a test injected it. */
nvmlReturn_t fault_answer(const struct sim_faults *faults)
{
	const struct timespec moment = {.tv_nsec = 1000000};
	const struct timespec delay = {.tv_sec = faults->nvml_delay_ms / 1000,
		.tv_nsec = faults->nvml_delay_ms % 1000 * 1000000L};

	while (atomic_load_explicit(&faults->nvml_hangs, memory_order_relaxed))
		nanosleep(&moment, NULL);
	if (faults->nvml_delay_ms > 0)
		nanosleep(&delay, NULL);
	if (atomic_load_explicit(&faults->lost, memory_order_relaxed) ||
		faults->listed == UINT32_MAX)
		return NVML_ERROR_GPU_IS_LOST;
	return (nvmlReturn_t)faults->nvml_error;
}

bool card_lies(const struct sim_card *card, enum sim_lie lie)
{
	return device->faults[card_index(card)].lies & lie;
}

/* As NVML says it. */
static void told_uuid(uint32_t entry, char text[48])
{
	struct sim_profile profile = device->profiles[entry];

	if (device->faults[entry].lies & SIM_LIE_UUID)
		profile.uuid[15] ^= 0xff;
	profile_uuid(&profile, text);
}

/* The position of a card in NVML's list, UINT32_MAX for one that is not listed. */
static uint32_t listed_at(uint32_t entry)
{
	const uint32_t listed = device->faults[entry].listed;
	uint32_t at = 0;

	if (!device_has_node(entry) || listed == UINT32_MAX)
		return UINT32_MAX;
	for (uint32_t i = 0; i < entry; i++)
		at += device_has_node(i);
	return listed ? listed - 1 : at;
}

nvmlReturn_t library_card(nvmlDevice_t handle, struct sim_card **card)
{
	nvmlReturn_t status = library_status();

	if (status != NVML_SUCCESS)
		return status;
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (handle != library_handle(i))
			continue;
		*card = &device->cards[i];
		return fault_answer(&device->faults[i]);
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

uint32_t card_index(const struct sim_card *card)
{
	return (uint32_t)(card - device->cards);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	for (uint32_t i = 0; i < device->header.card_count; i++)
		*count += listed_at(i) != UINT32_MAX;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(handle && index < device->header.card_count, NVML_ERROR_INVALID_ARGUMENT);
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		if (listed_at(i) != index)
			continue;
		*handle = library_handle(i);
		return fault_answer(&device->faults[i]);
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *handle)
{
	return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(uuid && handle, NVML_ERROR_INVALID_ARGUMENT);
	for (uint32_t i = 0; i < device_entries(); i++) {
		char text[48];

		told_uuid(i, text);
		if (strcmp(text, uuid) == 0 && device_has_node(i) &&
			device->faults[i].listed != UINT32_MAX) {
			*handle = library_handle(i);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *handle)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(uuid && handle, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(uuid->version == NVML_STRUCTURE_VERSION(nvmlUUID_v1_t, 1),
		NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	if (uuid->type == 1)
		return nvmlDeviceGetHandleByUUID(uuid->value.str, handle);
	for (uint32_t i = 0; i < device_entries() && uuid->type == 2; i++) {
		if (device_has_node(i) &&
			memcmp(device->profiles[i].uuid, uuid->value.bytes, 16) == 0) {
			*handle = library_handle(i);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *handle)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(serial && handle, NVML_ERROR_INVALID_ARGUMENT);
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		if (device_has_node(i) && strcmp(device->profiles[i].serial, serial) == 0) {
			*handle = library_handle(i);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

/* "00000000:18:00.0", "0000:18:00.0" or "18:00.0". */
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle)
{
	unsigned int domain, bus, slot;

	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(bus_id && handle, NVML_ERROR_INVALID_ARGUMENT);
	if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		REQUIRE(sscanf(bus_id, "%x:%x", &bus, &slot) == 2, NVML_ERROR_INVALID_ARGUMENT);
	}
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		if (device_has_node(i) && domain == 0 && slot == 0 &&
			device->profiles[i].pci_bus == bus) {
			*handle = library_handle(i);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *handle)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, handle);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
	char text[48];

	REQUIRE_CARD(card, handle);
	told_uuid(card_index(card), text);
	return text_out(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
	REQUIRE_CARD(card, handle);
	return text_out(name, length, card_profile(card)->name);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned int length)
{
	REQUIRE_CARD(card, handle);
	return text_out(serial, length, card_profile(card)->serial);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t handle, char *version, unsigned int length)
{
	REQUIRE_CARD(card, handle);
	return text_out(version, length, card_profile(card)->vbios);
}

static nvmlReturn_t pci_info(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	REQUIRE_CARD(card, handle);
	const struct sim_profile *profile = card_profile(card);

	REQUIRE(pci, NVML_ERROR_INVALID_ARGUMENT);
	*pci = (nvmlPciInfo_t){.bus = profile->pci_bus,
		.pciDeviceId = profile->pci_device_id,
		.pciSubSystemId = profile->pci_subsystem_id};
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:%02X:00.0", pci->bus & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", pci->bus & 0xff);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	return pci_info(handle, pci);
}

/* Version 2 has no long bus ID, and ends before it. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t whole;
	nvmlReturn_t status = pci_info(handle, &whole);

	if (status == NVML_SUCCESS && pci)
		memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
	return pci ? status : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t handle, nvmlPciInfo_v1_t *pci)
{
	nvmlPciInfo_t whole;
	nvmlReturn_t status = pci_info(handle, &whole);

	if (status == NVML_SUCCESS && pci)
		memcpy(pci, &whole, sizeof(*pci));
	return pci ? status : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(major && minor, NVML_ERROR_INVALID_ARGUMENT);
	*major = (int)card_profile(card)->compute_major;
	*minor = (int)card_profile(card)->compute_minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t handle, nvmlDevice_t other, int *same)
{
	REQUIRE_CARD(card, handle);
	REQUIRE_CARD(second, other);
	REQUIRE(same, NVML_ERROR_INVALID_ARGUMENT);
	*same = card == second;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(attributes, NVML_ERROR_INVALID_ARGUMENT);
	*attributes =
		(nvmlDeviceAttributes_t){.multiprocessorCount = card_profile(card)->multiprocessors,
			.gpuInstanceSliceCount = card_profile(card)->slices,
			.computeInstanceSliceCount = card_profile(card)->slices,
			.memorySizeMB = card_profile(card)->memory_bytes >> 20};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
	return nvmlDeviceGetAttributes_v2(handle, attributes);
}

/* A function that returns one number of a card. */
#define NUMBER(name, type, value)                                                                  \
	nvmlReturn_t name(nvmlDevice_t handle, type *number)                                       \
	{                                                                                          \
		REQUIRE_CARD(card, handle);                                                        \
		REQUIRE(number, NVML_ERROR_INVALID_ARGUMENT);                                      \
		*number = (type)(value);                                                           \
		return NVML_SUCCESS;                                                               \
	}

NUMBER(nvmlDeviceGetIndex, unsigned int,
	card_profile(card)->parent ? instance_index(card) : listed_at(card_index(card)))
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, card_index(card))
NUMBER(nvmlDeviceGetBoardId, unsigned int, card_profile(card)->pci_bus << 8)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
NUMBER(nvmlDeviceGetBrand, int, card_profile(card)->nvml_brand)
NUMBER(nvmlDeviceGetArchitecture, unsigned int, card_profile(card)->nvml_architecture)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, card_profile(card)->memory_bus_bits)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int,
	card_profile(card)->multiprocessors *card_profile(card)->cores_per_multiprocessor)
