/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML's view: cards, their memory, and the processes on them.
 */
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>

#include "nvml_api.h"

#define SMI_PROCESSES 64
#define NVML_FUNCTIONS(X)                                                                          \
	X(nvmlInit_v2)                                                                             \
	X(nvmlDeviceGetCount_v2)                                                                   \
	X(nvmlDeviceGetHandleByIndex_v2)                                                           \
	X(nvmlDeviceGetUUID)                                                                       \
	X(nvmlDeviceGetMemoryInfo)                                                                 \
	X(nvmlDeviceGetComputeRunningProcesses_v3)

#define NVML_DEFINE(name) static __typeof__(&name) real_##name;
NVML_FUNCTIONS(NVML_DEFINE)
#undef NVML_DEFINE

static bool smi_open(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return false;
#define NVML_LOAD(name) real_##name = (__typeof__(&name))dlsym(library, #name);
	NVML_FUNCTIONS(NVML_LOAD)
#undef NVML_LOAD
	return real_nvmlInit_v2 && real_nvmlInit_v2() == NVML_SUCCESS;
}

static void card_report(nvmlDevice_t device, unsigned int index)
{
	nvmlProcessInfo_v2_t processes[SMI_PROCESSES];
	unsigned int count = SMI_PROCESSES;
	nvmlMemory_t memory = {0};
	char uuid[96] = "";

	real_nvmlDeviceGetUUID(device, uuid, sizeof uuid);
	real_nvmlDeviceGetMemoryInfo(device, &memory);
	/* Engines for remote GPUs have only the forms that drivers before 510 have. */
	if (!real_nvmlDeviceGetComputeRunningProcesses_v3 ||
		real_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes) !=
			NVML_SUCCESS)
		count = 0;
	printf("%s{\"uuid\":\"%s\",\"total\":%llu,\"used\":%llu,\"free\":%llu,\"processes\":[",
		index ? "," : "", uuid, memory.total, memory.used, memory.free);
	for (unsigned int i = 0; i < count; i++)
		printf("%s{\"pid\":%u,\"bytes\":%llu}", i ? "," : "", processes[i].pid,
			processes[i].usedGpuMemory);
	printf("]}");
}

void smi_report(struct probe *probe)
{
	unsigned int count = 0;
	nvmlDevice_t device;

	(void)probe;
	if (!smi_open()) {
		printf("{\"event\":\"smi\",\"found\":false}\n");
		return;
	}
	real_nvmlDeviceGetCount_v2(&count);
	printf("{\"event\":\"smi\",\"found\":true,\"cards\":[");
	for (unsigned int i = 0; i < count; i++)
		if (real_nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS)
			card_report(device, i);
	printf("]}\n");
}
