/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVML of two cards that reports all processes, for what the simulator's does not know:
 * accounting, topology, partitions, samples. Other tenants' process has pid 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_api.h"

#define EXPORT __attribute__((visibility("default")))
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static char cards[2], partition;

static nvmlDevice_t handle(unsigned int index)
{
	return (nvmlDevice_t)(void *)&cards[index];
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = LENGTH(cards);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	*device = handle(index);
	return index < LENGTH(cards) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	if (device == (nvmlDevice_t)(void *)&partition)
		snprintf(uuid, length, "MIG-00000000-0000-0000-0000-000000000001");
	else
		snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%d",
			device == handle(0) ? 1 : 2);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(
	nvmlDevice_t device, unsigned int index, nvmlDevice_t *found)
{
	(void)device;
	*found = (nvmlDevice_t)(void *)&partition;
	return index == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* All lists: the number where there is no room, else both cards. */
static nvmlReturn_t both(unsigned int *count, nvmlDevice_t *devices)
{
	if (*count == 0) {
		*count = LENGTH(cards);
		return NVML_SUCCESS;
	}
	*count = LENGTH(cards);
	devices[0] = handle(1);
	devices[1] = handle(0);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(
	nvmlDevice_t device, int level, unsigned int *count, nvmlDevice_t *devices)
{
	(void)device, (void)level;
	return both(count, devices);
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(
	unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
	(void)cpu;
	return both(count, devices);
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices)
{
	(void)unit;
	return both(count, devices);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size);
nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
	(void)device;
	*size = 4;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(
	nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	const char *own = getenv("FAKE_NVML_OWN_PID");

	(void)device;
	if (*count < 2) {
		*count = 2;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	*count = 2;
	pids[0] = 1;
	pids[1] = own ? (unsigned int)atoi(own) : 1;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(
	nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
	(void)device, (void)pid;
	stats->maxMemoryUsage = 4096;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
	(void)device;
	stats->maxMemoryUsage = 4096;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderSessions(
	nvmlDevice_t device, unsigned int *count, nvmlEncoderSessionInfo_t *sessions)
{
	(void)device, (void)sessions;
	*count = 3;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	(void)device;
	*utilization = (nvmlUtilization_t){.gpu = 80, .memory = 40};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
	(void)device;
	for (unsigned int i = 0; i < NVML_UTILIZATIONS; i++)
		info->utilization[i].percentage = 80;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen,
	int *value_type, unsigned int *count, nvmlSample_t *samples)
{
	(void)device, (void)type, (void)last_seen;
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
	*count = 3;
	for (unsigned int i = 0; samples && i < *count; i++)
		samples[i] = (nvmlSample_t){
			.timeStamp = 100 + (i + 1) % 3, .sampleValue = {.uiVal = 80}};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	(void)device;
	*attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = 7, .memorySizeMB = 80000};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
	(void)device;
	*memory = (nvmlMemory_t){.total = 1, .free = 2, .used = 3};
	return NVML_SUCCESS;
}
