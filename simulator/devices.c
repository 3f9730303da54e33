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

CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice ordinal)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE(bus_id && length >= 13, CUDA_ERROR_INVALID_VALUE);
	snprintf(bus_id, (size_t)length, "0000:%02X:00.0",
		card_profile(device_card(ordinal))->pci_bus);
	return CUDA_SUCCESS;
}

/* Whole cards can access each other, over the bus; instances cannot. */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer)
{
	REQUIRE_DEVICE(ordinal);
	REQUIRE_DEVICE(peer);
	REQUIRE(can, CUDA_ERROR_INVALID_VALUE);
	*can = ordinal != peer && !card_profile(device_card(ordinal))->parent &&
	       !card_profile(device_card(peer))->parent;
	return CUDA_SUCCESS;
}
