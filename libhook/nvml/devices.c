/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices there are: the granted ones, numbered from 0 in the real library's order.
 */
#include <stdbool.h>

#include "cards.h"

static bool is_granted(nvmlDevice_t device)
{
	unsigned card;

	return card_of_device(&card, device) == NVML_SUCCESS;
}

/* The granted device number `wanted`, and how many there are up to and with it. */
static nvmlReturn_t find_granted(unsigned int wanted, nvmlDevice_t *device, unsigned int *count)
{
	unsigned int all;
	nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&all);

	*count = 0;
	for (unsigned int index = 0; result == NVML_SUCCESS && index < all; index++) {
		nvmlDevice_t candidate;
		/* One that this process may not open does not hide those behind it. */
		if (REAL(nvmlDeviceGetHandleByIndex_v2)(index, &candidate) != NVML_SUCCESS ||
			!is_granted(candidate))
			continue;
		*device = candidate;
		if ((*count)++ == wanted)
			return NVML_SUCCESS;
	}
	return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
}

static nvmlReturn_t count_granted(unsigned int *count)
{
	nvmlDevice_t device;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = find_granted(UINT32_MAX, &device, count);
	return result == NVML_ERROR_INVALID_ARGUMENT ? NVML_SUCCESS : result;
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device)
{
	unsigned int count;

	return device ? find_granted(index, device, &count) : NVML_ERROR_INVALID_ARGUMENT;
}

/* As if a device that was not granted were not there. */
static nvmlReturn_t hide(nvmlReturn_t result, nvmlDevice_t *device)
{
	return result != NVML_SUCCESS || is_granted(*device) ? result : NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetCount, (unsigned int *count))
{
	return count_granted(count);
}

NVML(nvmlDeviceGetCount_v2, (unsigned int *count))
{
	return count_granted(count);
}

NVML(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *device))
{
	return by_index(index, device);
}

NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device))
{
	return by_index(index, device);
}

NVML(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))
{
	return hide(REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

NVML(nvmlDeviceGetHandleByUUIDV, (const nvmlUUID_v1_t *uuid, nvmlDevice_t *device))
{
	return hide(REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

NVML(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *device))
{
	return hide(REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

NVML(nvmlDeviceGetHandleByPciBusId, (const char *bus_id, nvmlDevice_t *device))
{
	return hide(REAL(nvmlDeviceGetHandleByPciBusId)(bus_id, device), device);
}

NVML(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *device))
{
	return hide(REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus_id, device), device);
}

NVML(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int *index))
{
	nvmlDevice_t candidate;
	unsigned int count;
	nvmlReturn_t result = REAL(nvmlDeviceGetIndex)(device, index);

	for (unsigned int i = 0; result == NVML_SUCCESS; i++) {
		result = find_granted(i, &candidate, &count);
		if (result == NVML_SUCCESS && candidate == device) {
			*index = i;
			break;
		}
	}
	return result;
}

NVML(nvmlDeviceGetMigDeviceHandleByIndex,
	(nvmlDevice_t device, unsigned int index, nvmlDevice_t *partition))
{
	return hide(REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, partition), partition);
}

/* Leave the granted ones in a list. Without an array the call told how many there would be: room
 * for too many does no harm. */
static nvmlReturn_t keep_granted(nvmlReturn_t result, unsigned int *count, nvmlDevice_t *devices)
{
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !devices)
		return result;
	for (unsigned int i = 0; i < *count; i++)
		if (is_granted(devices[i]))
			devices[kept++] = devices[i];
	*count = kept;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetTopologyNearestGpus,
	(nvmlDevice_t device, int level, unsigned int *count, nvmlDevice_t *devices))
{
	bool asks = count && *count == 0;
	nvmlReturn_t result = REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, devices);

	return keep_granted(result, count, asks ? NULL : devices);
}

NVML(nvmlSystemGetTopologyGpuSet, (unsigned int cpu, unsigned int *count, nvmlDevice_t *devices))
{
	bool asks = count && *count == 0;
	nvmlReturn_t result = REAL(nvmlSystemGetTopologyGpuSet)(cpu, count, devices);

	return keep_granted(result, count, asks ? NULL : devices);
}

NVML(nvmlUnitGetDevices, (nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices))
{
	return keep_granted(REAL(nvmlUnitGetDevices)(unit, count, devices), count, devices);
}
