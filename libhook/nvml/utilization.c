/* SPDX-License-Identifier: Apache-2.0
 *
 * The utilization of the container, and of its own processes.
 */
#include "cards.h"
#include "tenant_processes.h"
#include "quota/pages.h"

/* Nothing measures how often a container uses the memory bus: its part of the card's figure is
 * assumed to be its part of the card's busy time. */
static unsigned int share_of(unsigned int percent, unsigned int own, unsigned int all)
{
	if (all == 0)
		return 0;
	return own < all ? percent * own / all : percent;
}

/* The container's values in place of the card's figures; the real call checks the arguments. */
static nvmlReturn_t slice_utilization(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	unsigned card;
	nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(device, utilization);

	if (result == NVML_SUCCESS)
		result = card_of_device(&card, device);
	if (result != NVML_SUCCESS)
		return result;
	unsigned int own = atomic_load(&grant_card(card)->utilization_percent);
	utilization->memory = share_of(utilization->memory, own, utilization->gpu);
	utilization->gpu = own;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t *utilization))
{
	return slice_utilization(device, utilization);
}

NVML(nvmlDeviceGetDynamicPstatesInfo, (nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info))
{
	nvmlUtilization_t slice;
	nvmlReturn_t result = REAL(nvmlDeviceGetDynamicPstatesInfo)(device, info);

	if (result == NVML_SUCCESS)
		result = slice_utilization(device, &slice);
	if (result != NVML_SUCCESS)
		return result;
	info->utilization[NVML_UTILIZATION_GPU].percentage = slice.gpu;
	info->utilization[NVML_UTILIZATION_MEMORY].percentage = slice.memory;
	return NVML_SUCCESS;
}

/* The driver keeps samples of the whole card only: for the container there is the current figure,
 * with the time of the newest sample. */
NVML(nvmlDeviceGetSamples, (nvmlDevice_t device, int type, unsigned long long last_seen,
				   int *value_type, unsigned int *count, nvmlSample_t *samples))
{
	nvmlUtilization_t slice;
	nvmlReturn_t result =
		REAL(nvmlDeviceGetSamples)(device, type, last_seen, value_type, count, samples);
	bool shared =
		type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;

	if (result != NVML_SUCCESS || !samples || !shared || *count == 0)
		return result;
	result = slice_utilization(device, &slice);
	if (result != NVML_SUCCESS)
		return result;
	for (unsigned int i = 1; i < *count; i++)
		if (samples[i].timeStamp > samples[0].timeStamp)
			samples[0].timeStamp = samples[i].timeStamp;
	samples[0].sampleValue.uiVal =
		type == NVML_GPU_UTILIZATION_SAMPLES ? slice.gpu : slice.memory;
	*count = 1;
	return NVML_SUCCESS;
}

/* The driver reports each process by its PID in the caller's namespace; processes of other tenants
 * are omitted. */
NVML(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					      unsigned int *count, unsigned long long last_seen))
{
	nvmlReturn_t result =
		REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen);
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !samples)
		return result;
	for (unsigned int i = 0; i < *count; i++)
		if (is_tenant_process(samples[i].pid))
			samples[kept++] = samples[i];
	*count = kept;
	return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetProcessesUtilizationInfo,
	(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !info->procUtilArray)
		return result;
	for (unsigned int i = 0; i < info->processSamplesCount; i++)
		if (is_tenant_process(info->procUtilArray[i].pid))
			info->procUtilArray[kept++] = info->procUtilArray[i];
	info->processSamplesCount = kept;
	return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
