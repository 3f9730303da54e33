/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of gpushare-probe. Every function prints its result as one JSON line.
 */
#ifndef GPUSHARE_PROBE_H
#define GPUSHARE_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_driver.h"

#define PROBE_ALLOCATIONS 4096

struct allocation_path;

struct allocation {
	const struct allocation_path *path;
	size_t bytes;
	CUdeviceptr pointer;
	union {
		CUmemGenericAllocationHandle physical;
		CUarray array;
		CUmodule module;
		CUgraph graph;
	};
	CUgraphExec instance;
};

struct probe {
	const char *library;
	int card;
	CUdevice device;
	CUcontext context; /* NULL until the first command that needs it */
	CUmemoryPool pool; /* the same */
	struct allocation allocations[PROBE_ALLOCATIONS];
	size_t allocation_count;
};

/* The driver's functions, loaded by name; NULL if this driver lacks one. */
#define PROBE_FUNCTIONS(X)                                                                         \
	X(cuInit)                                                                                  \
	X(cuDeviceGet)                                                                             \
	X(cuDeviceGetCount)                                                                        \
	X(cuDeviceGetName)                                                                         \
	X(cuDeviceTotalMem_v2)                                                                     \
	X(cuDevicePrimaryCtxRetain)                                                                \
	X(cuCtxSetCurrent)                                                                         \
	X(cuCtxSynchronize)                                                                        \
	X(cuMemGetInfo_v2)                                                                         \
	X(cuMemAlloc_v2)                                                                           \
	X(cuMemAllocPitch_v2)                                                                      \
	X(cuMemAllocManaged)                                                                       \
	X(cuMemAllocAsync)                                                                         \
	X(cuMemAllocFromPoolAsync)                                                                 \
	X(cuMemPoolCreate)                                                                         \
	X(cuMemPoolTrimTo)                                                                         \
	X(cuMemCreate)                                                                             \
	X(cuMemGetAllocationGranularity)                                                           \
	X(cuMemFree_v2)                                                                            \
	X(cuMemFreeAsync)                                                                          \
	X(cuMemRelease)                                                                            \
	X(cuMemcpyHtoD_v2)                                                                         \
	X(cuMemcpyDtoH_v2)                                                                         \
	X(cuArrayCreate_v2)                                                                        \
	X(cuArrayDestroy)                                                                          \
	X(cuGraphCreate)                                                                           \
	X(cuGraphAddMemAllocNode)                                                                  \
	X(cuGraphInstantiateWithFlags)                                                             \
	X(cuGraphLaunch)                                                                           \
	X(cuGraphExecDestroy)                                                                      \
	X(cuGraphDestroy)                                                                          \
	X(cuDeviceGraphMemTrim)                                                                    \
	X(cuModuleLoadData)                                                                        \
	X(cuModuleUnload)                                                                          \
	X(cuModuleGetFunction)                                                                     \
	X(cuLaunchKernel)                                                                          \
	X(cuEventCreate)                                                                           \
	X(cuEventRecord)                                                                           \
	X(cuEventSynchronize)                                                                      \
	X(cuGetErrorName)

#define PROBE_DECLARE(name) extern __typeof__(&name) driver_##name;
PROBE_FUNCTIONS(PROBE_DECLARE)
#undef PROBE_DECLARE

bool driver_open(struct probe *probe);
const char *driver_error_name(CUresult result);

void memory_context(struct probe *probe);
bool memory_ready(
	struct probe *probe); /* makes the context current; false after reporting the reason */
void memory_info(struct probe *probe);
bool memory_alloc(struct probe *probe, const char *api, size_t bytes);
bool memory_fill(struct probe *probe, const char *api);
void memory_free_all(struct probe *probe);

/* One allocation path. `take` fills in what it allocated for `bytes`, and leaves nothing if it
 * fails. */
struct allocation_path {
	const char *name; /* of the driver's function that takes the memory */
	CUresult (*take)(struct probe *probe, struct allocation *made);
	CUresult (*release)(struct allocation *made);
};
const struct allocation_path *allocation_path_named(const char *name); /* NULL: there is none */
CUmemAllocationProp memory_on_card(const struct probe *probe);
void memory_trim(struct probe *probe);

void work_copy(struct probe *probe, size_t bytes);
void work_busy(struct probe *probe, unsigned long long duration_ns, unsigned long long for_ns);
void work_spin(struct probe *probe, unsigned long long duration_ns, unsigned long long times);

/* Known bytes in all memory that was taken, and whether they are still there. */
void contents_write(struct probe *probe, unsigned long long seed);
void contents_check(struct probe *probe, unsigned long long seed);

void smi_report(struct probe *probe);

#endif
