/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes memory by each allocation path, up to the driver's limit.
 */
#include "probe.h"

#include <stdio.h>
#include <string.h>

#define GRANULARITY_MINIMUM 0 /* CU_MEM_ALLOC_GRANULARITY_MINIMUM */

static void result_report(const char *event, CUresult result)
{
	printf("{\"event\":\"%s\",\"code\":%d,\"result\":\"%s\"}\n", event, (int)result,
		driver_error_name(result));
}

bool memory_ready(struct probe *probe)
{
	CUresult result = CUDA_SUCCESS;

	if (!probe->context)
		result = driver_cuDevicePrimaryCtxRetain(&probe->context, probe->device);
	if (result == CUDA_SUCCESS)
		result = driver_cuCtxSetCurrent(probe->context);
	if (result != CUDA_SUCCESS)
		result_report("context", result);
	return result == CUDA_SUCCESS;
}

void memory_context(struct probe *probe)
{
	if (memory_ready(probe))
		result_report("context", CUDA_SUCCESS);
}

void memory_info(struct probe *probe)
{
	size_t free_bytes = 0, total_bytes = 0, device_bytes = 0;
	char name[128] = "";
	int count = 0;

	if (!memory_ready(probe))
		return;
	driver_cuDeviceGetCount(&count);
	driver_cuDeviceGetName(name, sizeof name, probe->device);
	driver_cuDeviceTotalMem_v2(&device_bytes, probe->device);
	driver_cuMemGetInfo_v2(&free_bytes, &total_bytes);
	name[strcspn(name, "\"\\")] = '\0';
	printf("{\"event\":\"info\",\"cards\":%d,\"name\":\"%s\",\"device_total\":%zu,\"total\":%"
	       "zu,"
	       "\"free\":%zu}\n",
		count, name, device_bytes, total_bytes, free_bytes);
}

static CUresult allocation_keep(
	struct probe *probe, const struct allocation_path *path, size_t bytes)
{
	struct allocation *made = &probe->allocations[probe->allocation_count];
	CUresult result;

	if (probe->allocation_count == PROBE_ALLOCATIONS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = (struct allocation){.path = path, .bytes = bytes};
	result = path->take(probe, made);
	if (result == CUDA_SUCCESS)
		probe->allocation_count++;
	return result;
}

bool memory_alloc(struct probe *probe, const char *api, size_t bytes)
{
	const struct allocation_path *path = allocation_path_named(api);
	CUresult result;

	if (!path)
		return false;
	if (!memory_ready(probe))
		return true;
	result = allocation_keep(probe, path, bytes);
	printf("{\"event\":\"alloc\",\"api\":\"%s\",\"bytes\":%zu,\"code\":%d,\"result\":\"%s\"}\n",
		api, bytes, (int)result, driver_error_name(result));
	return true;
}

/* Ever smaller allocations, down to the driver's granularity: what is finally refused is one
 * granule. */
bool memory_fill(struct probe *probe, const char *api)
{
	const CUmemAllocationProp properties = memory_on_card(probe);
	const struct allocation_path *path = allocation_path_named(api);
	size_t granule = 0, filled = 0, piece = (size_t)64 << 30;
	CUresult result = CUDA_SUCCESS;

	if (!path)
		return false;
	if (!memory_ready(probe))
		return true;
	driver_cuMemGetAllocationGranularity(&granule, &properties, GRANULARITY_MINIMUM);
	while (granule && piece >= granule) {
		result = allocation_keep(probe, path, piece);
		if (result == CUDA_SUCCESS)
			filled += piece;
		else
			piece /= 2;
	}
	printf("{\"event\":\"fill\",\"api\":\"%s\",\"bytes\":%zu,\"granule\":%zu,\"code\":%d,"
	       "\"result\":\"%s\"}\n",
		api, filled, granule, (int)result, driver_error_name(result));
	return true;
}

void memory_free_all(struct probe *probe)
{
	size_t bytes = 0;
	CUresult result = CUDA_SUCCESS, one;

	if (!memory_ready(probe))
		return;
	while (probe->allocation_count) {
		struct allocation *last = &probe->allocations[--probe->allocation_count];

		one = last->path->release(last);
		if (one != CUDA_SUCCESS)
			result = one;
		else
			bytes += last->bytes;
	}
	memory_trim(probe);
	printf("{\"event\":\"free\",\"bytes\":%zu,\"code\":%d,\"result\":\"%s\"}\n", bytes,
		(int)result, driver_error_name(result));
}
