/* SPDX-License-Identifier: Apache-2.0
 *
 * A card's properties, as the driver reports them.
 */
#include "driver.h"

#include <stdio.h>
#include <string.h>

#define REQUIRE_DEVICE(ordinal)                                                                    \
	do {                                                                                       \
		REQUIRE_DRIVER();                                                                  \
		REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);                         \
	} while (0)

CUresult cuDeviceGet(CUdevice *result, int ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(result, CUDA_ERROR_INVALID_VALUE);
	*result = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	REQUIRE_DRIVER();
	REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
	*count = (int)device_count();
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(name && length > 0, CUDA_ERROR_INVALID_VALUE);
	snprintf(name, (size_t)length, "%s", card_profile(device_card(ordinal))->name);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
	memcpy(uuid->bytes, card_profile(device_card(ordinal))->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

/* For an instance, this returns its card's. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	const struct sim_profile *profile;

	REQUIRE_DEVICE(ordinal);
	REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
	profile = card_profile(device_card(ordinal));
	if (profile->parent)
		profile = &device->profiles[profile->parent - 1];
	memcpy(uuid->bytes, profile->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
	*bytes = card_usable_bytes(device_card(ordinal));
	return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(major && minor, CUDA_ERROR_INVALID_VALUE);
	*major = (int)card_profile(device_card(ordinal))->compute_major;
	*minor = (int)card_profile(device_card(ordinal))->compute_minor;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(bus_id && length >= 13, CUDA_ERROR_INVALID_VALUE);
	snprintf(bus_id, (size_t)length, "0000:%02X:00.0",
		card_profile(device_card(ordinal))->pci_bus);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *result, const char *bus_id)
{
	unsigned int domain = 0, bus = 0, slot = 0;

	REQUIRE_DRIVER();
	REQUIRE(result && bus_id, CUDA_ERROR_INVALID_VALUE);
	if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		REQUIRE(sscanf(bus_id, "%x:%x", &bus, &slot) == 2, CUDA_ERROR_INVALID_VALUE);
	}
	for (uint32_t i = 0; i < device_count(); i++) {
		if (domain == 0 && slot == 0 &&
			card_profile(device_card((CUdevice)i))->pci_bus == bus) {
			*result = (CUdevice)i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(properties, CUDA_ERROR_INVALID_VALUE);
	*properties = (CUdevprop){
		.maxThreadsPerBlock = 1024,
		.maxThreadsDim = {1024, 1024, 64},
		.maxGridSize = {2147483647, 65535, 65535},
		.sharedMemPerBlock = 49152,
		.totalConstantMemory = 65536,
		.SIMDWidth = 32,
		.memPitch = 2147483647,
		.regsPerBlock = 65536,
		.clockRate = (int)card_profile(device_card(ordinal))->clock_sm_mhz * 1000,
		.textureAlign = 512,
	};
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *value, CUexecAffinityType type, CUdevice ordinal)
{
	(void)type;
	REQUIRE_DEVICE(ordinal);
	REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
	*value = 0;
	return CUDA_SUCCESS;
}
