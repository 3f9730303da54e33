/* SPDX-License-Identifier: Apache-2.0
 *
 * What the driver noted of each process since it began. Of those of the tenant that live: a pid of
 * one that ended may be anybody's by now.
 */
#include <string.h>

#include "filter.h"
#include "own.h"

NVML(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned int *count, unsigned int *pids))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !pids)
		return result;
	for (unsigned int i = 0; i < *count; i++)
		if (is_own_process(pids[i]))
			pids[kept++] = pids[i];
	*count = kept;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetAccountingStats,
	(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);

	if (result != NVML_SUCCESS || is_own_process(pid))
		return result;
	memset(stats, 0, sizeof(*stats));
	return NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetAccountingStats_v2, (nvmlDevice_t device, nvmlAccountingStats_v2_t *stats))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);

	if (result != NVML_SUCCESS || is_own_process(stats->pid))
		return result;
	memset(stats, 0, sizeof(*stats));
	return NVML_ERROR_NOT_FOUND;
}
