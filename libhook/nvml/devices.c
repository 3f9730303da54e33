/* SPDX-License-Identifier: Apache-2.0
 *
 * The visible devices: the granted ones, and the card of a granted instance, through which programs
 * find the instance; numbered from 0 in the real library's order.
 */
#include "cards.h"

/* The visible device number `wanted`, and how many there are up to and including it. */
static nvmlReturn_t find_shown(unsigned int wanted, nvmlDevice_t *device, unsigned int *count)
{
	unsigned int all;
	nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&all);

	*count = 0;
	for (unsigned int index = 0; result == NVML_SUCCESS && index < all; index++) {
		nvmlDevice_t candidate;
		/* A device that this process may not open does not hide those after it. */
		if (REAL(nvmlDeviceGetHandleByIndex_v2)(index, &candidate) != NVML_SUCCESS ||
			!device_is_shown(candidate))
			continue;
		*device = candidate;
		if ((*count)++ == wanted)
			return NVML_SUCCESS;
	}
	return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
}

static nvmlReturn_t count_shown(unsigned int *count)
{
	nvmlDevice_t device;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = find_shown(UINT32_MAX, &device, count);
	return result == NVML_ERROR_INVALID_ARGUMENT ? NVML_SUCCESS : result;
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device)
{
	unsigned int count;

	return device ? find_shown(index, device, &count) : NVML_ERROR_INVALID_ARGUMENT;
}

/* As if the others did not exist. */
static nvmlReturn_t hide(nvmlReturn_t result, nvmlDevice_t *device)
{
	return result != NVML_SUCCESS || device_is_shown(*device) ? result : NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetCount, (unsigned int *count))
{
	return count_shown(count);
}

NVML(nvmlDeviceGetCount_v2, (unsigned int *count))
{
	return count_shown(count);
}

NVML(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *device))
{
	return by_index(index, device);
}

NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device))
{
	return by_index(index, device);
}

#define HANDLE_BY(symbol, parameter, name)                                                         \
	NVML(symbol, (parameter, nvmlDevice_t * device))                                           \
	{                                                                                          \
		return hide(REAL(symbol)(name, device), device);                                   \
	}

HANDLE_BY(nvmlDeviceGetHandleByUUID, const char *uuid, uuid)
HANDLE_BY(nvmlDeviceGetHandleByUUIDV, const nvmlUUID_v1_t *uuid, uuid)
HANDLE_BY(nvmlDeviceGetHandleBySerial, const char *serial, serial)
HANDLE_BY(nvmlDeviceGetHandleByPciBusId, const char *bus_id, bus_id)
HANDLE_BY(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, bus_id)

NVML(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int *index))
{
	nvmlDevice_t candidate;
	unsigned int count;
	nvmlReturn_t result = REAL(nvmlDeviceGetIndex)(device, index);

	for (unsigned int i = 0; result == NVML_SUCCESS; i++) {
		result = find_shown(i, &candidate, &count);
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

/* Keep only the visible ones in a list. Without an array, the call returned the total number: too
 * much room does no harm. */
static nvmlReturn_t keep_shown(nvmlReturn_t result, unsigned int *count, nvmlDevice_t *devices)
{
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !devices)
		return result;
	for (unsigned int i = 0; i < *count; i++)
		if (device_is_shown(devices[i]))
			devices[kept++] = devices[i];
	*count = kept;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetTopologyNearestGpus,
	(nvmlDevice_t device, int level, unsigned int *count, nvmlDevice_t *devices))
{
	bool asks = count && *count == 0;
	nvmlReturn_t result = REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, devices);

	return keep_shown(result, count, asks ? NULL : devices);
}

NVML(nvmlSystemGetTopologyGpuSet, (unsigned int cpu, unsigned int *count, nvmlDevice_t *devices))
{
	bool asks = count && *count == 0;
	nvmlReturn_t result = REAL(nvmlSystemGetTopologyGpuSet)(cpu, count, devices);

	return keep_shown(result, count, asks ? NULL : devices);
}

NVML(nvmlUnitGetDevices, (nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices))
{
	return keep_shown(REAL(nvmlUnitGetDevices)(unit, count, devices), count, devices);
}
