/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists of running processes and of their sessions. A shared card only computes: there are no
 * graphics processes, codec sessions or MPS clients.
 */
#include "cards.h"
#include "symbols.h"
#include "tenant_processes.h"

#define NO_INSTANCE UINT32_MAX /* the device is not one of a partitioned card */

/* A caller's array, of either form of an entry. */
struct list {
	nvmlProcessInfo_v1_t *v1;
	nvmlProcessInfo_v2_t *v2;
	nvmlProcessDetail_v1_t *details;
	unsigned int capacity;
	unsigned int count;
	unsigned int gpu_instance, compute_instance;
};

static void append(const struct tenant_process *process, void *data)
{
	struct list *list = data;
	unsigned int i = list->count++;

	if (i >= list->capacity)
		return;
	if (list->v1) {
		nvmlProcessInfo_v1_t entry = {.pid = process->pid, .usedGpuMemory = process->bytes};
		list->v1[i] = entry;
	} else if (list->v2) {
		nvmlProcessInfo_v2_t entry = {.pid = process->pid,
			.usedGpuMemory = process->bytes,
			.gpuInstanceId = list->gpu_instance,
			.computeInstanceId = list->compute_instance};
		list->v2[i] = entry;
	} else if (list->details) {
		nvmlProcessDetail_v1_t entry = {.pid = process->pid,
			.usedGpuMemory = process->bytes,
			.gpuInstanceId = list->gpu_instance,
			.computeInstanceId = list->compute_instance};
		list->details[i] = entry;
	}
}

static void find_instance(nvmlDevice_t device, struct list *list)
{
	if (REAL(nvmlDeviceGetGpuInstanceId)(device, &list->gpu_instance) != NVML_SUCCESS)
		list->gpu_instance = NO_INSTANCE;
	if (REAL(nvmlDeviceGetComputeInstanceId)(device, &list->compute_instance) != NVML_SUCCESS)
		list->compute_instance = NO_INSTANCE;
}

/* As documented for all of them: if the array is too small or missing, the sufficient size is
 * returned. */
static nvmlReturn_t list_compute(nvmlDevice_t device, unsigned int *count, struct list *list)
{
	unsigned card;
	nvmlReturn_t result = card_of_device(&card, device);

	if (result != NVML_SUCCESS)
		return result;
	if (!count || (*count > 0 && !list->v1 && !list->v2 && !list->details))
		return NVML_ERROR_INVALID_ARGUMENT;
	find_instance(device, list);
	list->capacity = *count;
	tenant_processes(card, append, list);
	*count = list->count;
	return list->count > list->capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_none(nvmlDevice_t device, unsigned int *count)
{
	unsigned card;
	nvmlReturn_t result = card_of_device(&card, device);

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

#define COMPUTE(symbol, entry, form)                                                               \
	NVML(symbol, (nvmlDevice_t device, unsigned int *count, entry *processes))                 \
	{                                                                                          \
		struct list list = {.form = processes};                                            \
		return list_compute(device, count, &list);                                         \
	}

COMPUTE(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, v1)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, v2)
COMPUTE(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, v2)

NVML(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t device, nvmlProcessDetailList_v1_t *list))
{
	enum { COMPUTE = 0 };

	if (!library_is_initialized())
		return NVML_ERROR_UNINITIALIZED;
	if (!list)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (list->version != NVML_STRUCTURE_VERSION(nvmlProcessDetailList_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (list->mode != COMPUTE)
		return list_none(device, &list->numProcArrayEntries);
	struct list processes = {.details = list->procArray};
	return list_compute(device, &list->numProcArrayEntries, &processes);
}

#define NONE(symbol, entry)                                                                        \
	NVML(symbol, (nvmlDevice_t device, unsigned int *count, entry *processes))                 \
	{                                                                                          \
		(void)processes;                                                                   \
		return list_none(device, count);                                                   \
	}

NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t)
NONE(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t)
