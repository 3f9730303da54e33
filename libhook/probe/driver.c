/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the driver as any program does, and the functions that the probe calls.
 */
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>

#define PROBE_DEFINE(name) __typeof__(&name) driver_##name;
PROBE_FUNCTIONS(PROBE_DEFINE)
#undef PROBE_DEFINE

const char *driver_error_name(CUresult result)
{
	const char *name = NULL;

	if (driver_cuGetErrorName)
		driver_cuGetErrorName(result, &name);
	return name ? name : "unknown";
}

bool driver_open(struct probe *probe)
{
	void *library = dlopen(probe->library, RTLD_NOW | RTLD_LOCAL);
	CUresult result;

	if (!library) {
		printf("{\"event\":\"driver\",\"found\":false}\n");
		fprintf(stderr, "gpushare-probe: %s\n", dlerror());
		return false;
	}
#define PROBE_LOAD(name) driver_##name = (__typeof__(&name))dlsym(library, #name);
	PROBE_FUNCTIONS(PROBE_LOAD)
#undef PROBE_LOAD
	if (!driver_cuInit || !driver_cuDeviceGet) {
		fprintf(stderr, "gpushare-probe: %s is not a CUDA driver\n", probe->library);
		return false;
	}
	result = driver_cuInit(0);
	if (result == CUDA_SUCCESS)
		result = driver_cuDeviceGet(&probe->device, probe->card);
	printf("{\"event\":\"driver\",\"found\":true,\"code\":%d,\"result\":\"%s\"}\n", (int)result,
		driver_error_name(result));
	fflush(stdout);
	return result == CUDA_SUCCESS;
}
