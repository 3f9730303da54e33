/* SPDX-License-Identifier: Apache-2.0
 *
 * How busy the slice is, and its own processes.
 */
#include "cards.h"
#include "own.h"
#include "quota/pages.h"

/* For a slice nobody measures how often it uses the memory's bus: its part of the card's figure is
 * taken to be its part of the card's busy time. */
static unsigned int share_of(unsigned int percent, unsigned int own, unsigned int all)
{
	if (all == 0)
		return 0;
	return own < all ? percent * own / all : percent;
}

NVML(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t *utilization))
{
	unsigned card;
	nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(device, utilization);

	if (result == NVML_SUCCESS)
		result = card_of_device(&card, device);
	if (result != NVML_SUCCESS)
		return result;
	unsigned int own = atomic_load(&grant_card(card)->utilisation_percent);
	utilization->memory = share_of(utilization->memory, own, utilization->gpu);
	utilization->gpu = own;
	return NVML_SUCCESS;
}

/* The driver tells each process by its pid in the caller's namespace; one that is not of this
 * tenant is left out. */
NVML(nvmlDeviceGetProcessUtilization, (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
					      unsigned int *count, unsigned long long last_seen))
{
	nvmlReturn_t result =
		REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen);
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !samples)
		return result;
	for (unsigned int i = 0; i < *count; i++)
		if (is_own_process(samples[i].pid))
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
		if (is_own_process(info->procUtilArray[i].pid))
			info->procUtilArray[kept++] = info->procUtilArray[i];
	info->processSamplesCount = kept;
	return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
