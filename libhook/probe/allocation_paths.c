/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocation paths: ways to take a card's memory, each with its release.
 */
#include "probe.h"

#include <stdio.h>
#include <string.h>

#define PITCH_ROW_BYTES ((size_t)65536) /* wide enough that rows need no padding */
#define TEXEL_BYTES 16			/* four floats */
#define ARRAY_ROW_BYTES ((size_t)524288)
#define TO_NOTHING 0

CUmemAllocationProp memory_on_card(const struct probe *probe)
{
	CUmemAllocationProp properties;

	memset(&properties, 0, sizeof properties);
	properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	properties.location.id = probe->device;
	return properties;
}

static CUmemPoolProps pool_on_card(const struct probe *probe)
{
	CUmemPoolProps properties;

	memset(&properties, 0, sizeof properties);
	properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	properties.location.id = probe->device;
	return properties;
}

static CUresult linear_take(struct probe *probe, struct allocation *made)
{
	(void)probe;
	return driver_cuMemAlloc_v2(&made->pointer, made->bytes);
}

static CUresult pitch_take(struct probe *probe, struct allocation *made)
{
	const size_t rows = (made->bytes + PITCH_ROW_BYTES - 1) / PITCH_ROW_BYTES;
	size_t pitch;

	(void)probe;
	return driver_cuMemAllocPitch_v2(&made->pointer, &pitch, PITCH_ROW_BYTES, rows, 4);
}

static CUresult managed_take(struct probe *probe, struct allocation *made)
{
	(void)probe;
	return driver_cuMemAllocManaged(&made->pointer, made->bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult linear_release(struct allocation *made)
{
	return driver_cuMemFree_v2(made->pointer);
}

static CUresult stream_take(struct probe *probe, struct allocation *made)
{
	(void)probe;
	return driver_cuMemAllocAsync(&made->pointer, made->bytes, NULL);
}

static CUresult pool_take(struct probe *probe, struct allocation *made)
{
	const CUmemPoolProps properties = pool_on_card(probe);
	CUresult result = CUDA_SUCCESS;

	if (!probe->pool)
		result = driver_cuMemPoolCreate(&probe->pool, &properties);
	if (result != CUDA_SUCCESS)
		return result;
	return driver_cuMemAllocFromPoolAsync(&made->pointer, made->bytes, probe->pool, NULL);
}

static CUresult stream_release(struct allocation *made)
{
	return driver_cuMemFreeAsync(made->pointer, NULL);
}

static CUresult physical_take(struct probe *probe, struct allocation *made)
{
	const CUmemAllocationProp properties = memory_on_card(probe);

	return driver_cuMemCreate(&made->physical, made->bytes, &properties, 0);
}

static CUresult physical_release(struct allocation *made)
{
	return driver_cuMemRelease(made->physical);
}

static CUresult array_take(struct probe *probe, struct allocation *made)
{
	const CUDA_ARRAY_DESCRIPTOR descriptor = {
		.Width = ARRAY_ROW_BYTES / TEXEL_BYTES,
		.Height = (made->bytes + ARRAY_ROW_BYTES - 1) / ARRAY_ROW_BYTES,
		.Format = CU_AD_FORMAT_FLOAT,
		.NumChannels = 4,
	};

	(void)probe;
	return driver_cuArrayCreate_v2(&made->array, &descriptor);
}

static CUresult array_release(struct allocation *made)
{
	return driver_cuArrayDestroy(made->array);
}

static CUresult graph_release(struct allocation *made)
{
	CUresult result = CUDA_SUCCESS;

	if (made->pointer)
		result = driver_cuMemFreeAsync(made->pointer, NULL);
	if (made->instance)
		driver_cuGraphExecDestroy(made->instance);
	driver_cuGraphDestroy(made->graph);
	return result;
}

/* A graph with a single allocation node, launched: the memory lasts until it is freed. */
static CUresult graph_take(struct probe *probe, struct allocation *made)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	CUgraphNode node;
	CUresult result = driver_cuGraphCreate(&made->graph, 0);

	if (result != CUDA_SUCCESS)
		return result;
	memset(&parameters, 0, sizeof parameters);
	parameters.poolProps = pool_on_card(probe);
	parameters.bytesize = made->bytes;
	result = driver_cuGraphAddMemAllocNode(&node, made->graph, NULL, 0, &parameters);
	if (result == CUDA_SUCCESS)
		result = driver_cuGraphInstantiateWithFlags(&made->instance, made->graph, 0);
	if (result == CUDA_SUCCESS)
		result = driver_cuGraphLaunch(made->instance, NULL);
	if (result == CUDA_SUCCESS)
		made->pointer = parameters.dptr;
	else
		graph_release(made);
	return result;
}

/* A variable of that size, in PTX: every driver compiles it for its card. */
static CUresult module_take(struct probe *probe, struct allocation *made)
{
	char image[160];

	(void)probe;
	snprintf(image, sizeof image,
		".version 6.0\n.target sm_50\n.address_size 64\n"
		".visible .global .align 256 .b8 room[%zu];\n",
		made->bytes);
	return driver_cuModuleLoadData(&made->module, image);
}

static CUresult module_release(struct allocation *made)
{
	return driver_cuModuleUnload(made->module);
}

static const struct allocation_path allocation_paths[] = {
	{"cuMemAlloc", linear_take, linear_release},
	{"cuMemAllocPitch", pitch_take, linear_release},
	{"cuMemAllocManaged", managed_take, linear_release},
	{"cuMemAllocAsync", stream_take, stream_release},
	{"cuMemAllocFromPoolAsync", pool_take, stream_release},
	{"cuMemCreate", physical_take, physical_release},
	{"cuArrayCreate", array_take, array_release},
	{"cuGraphLaunch", graph_take, graph_release},
	{"cuModuleLoadData", module_take, module_release},
};

const struct allocation_path *allocation_path_named(const char *name)
{
	for (size_t i = 0; i < sizeof allocation_paths / sizeof *allocation_paths; i++)
		if (!strcmp(name, allocation_paths[i].name))
			return &allocation_paths[i];
	return NULL;
}

/* Memory that pools and graphs retain after it was freed. */
void memory_trim(struct probe *probe)
{
	driver_cuCtxSynchronize();
	if (probe->pool)
		driver_cuMemPoolTrimTo(probe->pool, TO_NOTHING);
	if (driver_cuDeviceGraphMemTrim)
		driver_cuDeviceGraphMemTrim(probe->device);
}
