/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: XIDs, as a test raises them in the device file. A set receives those that came after the
 * card was registered with it: for each one that it has not received yet, the last number.
 */
#include "library.h"

#include "clock.h"

#include <stdlib.h>
#include <time.h>

#define EVENT_XID UINT64_C(8) /* nvmlEventTypeXidCriticalError */
#define LOOK_NS 1000000

struct nvmlEventSet_st {
	bool registered[SIM_CARDS];
	uint32_t delivered[SIM_CARDS]; /* of so many */
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
	*set = calloc(1, sizeof(**set));
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
	REQUIRE_CARD(card, handle);
	(void)card;
	REQUIRE(types, NVML_ERROR_INVALID_ARGUMENT);
	*types = EVENT_XID;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(
	nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE((types & ~EVENT_XID) == 0, NVML_ERROR_NOT_SUPPORTED);
	set->registered[card_index(card)] = types != 0;
	set->delivered[card_index(card)] = atomic_load(&device->faults[card_index(card)].xids);
	return NVML_SUCCESS;
}

static bool next(nvmlEventSet_t set, nvmlEventData_t *data)
{
	for (uint32_t i = 0; i < device_entries(); i++) {
		const struct sim_faults *faults = &device->faults[i];

		if (!set->registered[i] || set->delivered[i] == atomic_load(&faults->xids))
			continue;
		set->delivered[i] = atomic_load(&faults->xids);
		*data = (nvmlEventData_t){.device = library_handle(i),
			.eventType = EVENT_XID,
			.eventData = faults->xid,
			.gpuInstanceId = UINT32_MAX,
			.computeInstanceId = UINT32_MAX};
		return true;
	}
	return false;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	const struct timespec moment = {.tv_nsec = LOOK_NS};
	uint64_t end = clock_ns() + timeout_ms * UINT64_C(1000000);

	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(set && data, NVML_ERROR_INVALID_ARGUMENT);
	while (!next(set, data)) {
		if (clock_ns() >= end)
			return NVML_ERROR_TIMEOUT;
		nanosleep(&moment, NULL);
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
