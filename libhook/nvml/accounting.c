/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's accounting of each process since it started, for the tenant's living processes only:
 * the PID of one that exited may have been reused.
 */
#include <string.h>

#include "interpose.h"
#include "tenant_processes.h"

NVML(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned int *count, unsigned int *pids))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
	unsigned int kept = 0;

	if (result != NVML_SUCCESS || !pids)
		return result;
	for (unsigned int i = 0; i < *count; i++)
		if (is_tenant_process(pids[i]))
			pids[kept++] = pids[i];
	*count = kept;
	return NVML_SUCCESS;
}

NVML(nvmlDeviceGetAccountingStats,
	(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);

	if (result != NVML_SUCCESS || is_tenant_process(pid))
		return result;
	memset(stats, 0, sizeof(*stats));
	return NVML_ERROR_NOT_FOUND;
}

NVML(nvmlDeviceGetAccountingStats_v2, (nvmlDevice_t device, nvmlAccountingStats_v2_t *stats))
{
	nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);

	if (result != NVML_SUCCESS || is_tenant_process(stats->pid))
		return result;
	memset(stats, 0, sizeof(*stats));
	return NVML_ERROR_NOT_FOUND;
}
