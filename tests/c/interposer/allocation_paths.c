/* SPDX-License-Identifier: Apache-2.0 */
#include "allocation_paths.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CUDA_FLOAT 0x20
#define ROW ((size_t)4096 * 4 * 4) /* bytes, of an array */

static CUdevice device;
static CUcontext context;
static CUmemoryPool own_pool;
static size_t heap_bytes; /* before anybody raised it */

static CUresult take_buffer(struct held *held)
{
	return cuMemAlloc_v2(&held->address, held->bytes);
}

static CUresult take_pitch(struct held *held)
{
	size_t pitch;

	return cuMemAllocPitch_v2(&held->address, &pitch, MIB, (held->bytes + MIB - 1) / MIB, 4);
}

static CUresult take_managed(struct held *held)
{
	return cuMemAllocManaged(&held->address, held->bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult give_buffer(const struct held *held)
{
	return cuMemFree_v2(held->address);
}

static CUresult take_async(struct held *held)
{
	return cuMemAllocAsync(&held->address, held->bytes, NULL);
}

static CUresult give_async(const struct held *held)
{
	return cuMemFreeAsync(held->address, NULL);
}

static CUresult take_async_ptsz(struct held *held)
{
	return cuMemAllocAsync_ptsz(&held->address, held->bytes, NULL);
}

static CUresult give_async_ptsz(const struct held *held)
{
	return cuMemFreeAsync_ptsz(held->address, NULL);
}

static CUresult take_pool(struct held *held)
{
	return cuMemAllocFromPoolAsync(&held->address, held->bytes, own_pool, NULL);
}

static CUresult take_pool_ptsz(struct held *held)
{
	return cuMemAllocFromPoolAsync_ptsz(&held->address, held->bytes, own_pool, NULL);
}

static CUmemAllocationProp on_card(void)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUresult take_physical(struct held *held)
{
	CUmemAllocationProp properties = on_card();

	return cuMemCreate(&held->handle, held->bytes, &properties, 0);
}

static CUresult give_physical(const struct held *held)
{
	return cuMemRelease(held->handle);
}

/* As allocators do: the handle goes as soon as the memory is mapped. */
static CUresult take_mapped(struct held *held)
{
	CUresult result = take_physical(held);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuMemAddressReserve(&held->address, held->bytes, 0, 0, 0);
	if (result == CUDA_SUCCESS)
		result = cuMemMap(held->address, held->bytes, 0, held->handle, 0);
	cuMemRelease(held->handle);
	return result;
}

static CUresult give_mapped(const struct held *held)
{
	CUresult result = cuMemUnmap(held->address, held->bytes);

	return result == CUDA_SUCCESS ? cuMemAddressFree(held->address, held->bytes) : result;
}

static CUresult take_array(struct held *held)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 4096,
		.Height = (held->bytes + ROW - 1) / ROW,
		.Format = CUDA_FLOAT,
		.NumChannels = 4};

	return cuArray3DCreate_v2(&held->array, &shape);
}

static CUresult give_array(const struct held *held)
{
	return cuArrayDestroy(held->array);
}

static CUresult take_mipmapped(struct held *held)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 4096,
		.Height = (held->bytes + ROW - 1) / ROW,
		.Format = CUDA_FLOAT,
		.NumChannels = 4};

	return cuMipmappedArrayCreate(&held->mipmapped, &shape, 1);
}

static CUresult give_mipmapped(const struct held *held)
{
	return cuMipmappedArrayDestroy(held->mipmapped);
}

/* What a graph allocates and does not free itself is the program's, as any other memory. */
static CUresult graph_build(CUgraph graph, struct held *held)
{
	CUDA_MEM_ALLOC_NODE_PARAMS allocation = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
		.bytesize = held->bytes};
	CUgraphNode node;
	CUresult result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation);

	held->address = allocation.dptr;
	return result;
}

static CUresult take_graph(struct held *held)
{
	CUgraph graph;
	CUgraphExec executable = NULL;
	CUresult result = cuGraphCreate(&graph, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = graph_build(graph, held);
	if (result == CUDA_SUCCESS)
		result = cuGraphInstantiateWithFlags(&executable, graph, 0);
	if (result == CUDA_SUCCESS)
		result = cuGraphLaunch(executable, NULL);
	if (result != CUDA_SUCCESS && executable)
		cuGraphExecDestroy(executable);
	cuGraphDestroy(graph);
	held->executable = executable;
	return result;
}

static CUresult give_graph(const struct held *held)
{
	CUresult result = cuMemFreeAsync(held->address, NULL);

	if (result == CUDA_SUCCESS)
		result = cuCtxSynchronize();
	return result == CUDA_SUCCESS ? cuGraphExecDestroy(held->executable) : result;
}

static CUresult take_module(struct held *held)
{
	char image[256];

	snprintf(image, sizeof(image),
		".version 7.0\n.target sm_70\n.address_size 64\n"
		".visible .global .align 16 .b8 room[%zu];\n",
		held->bytes);
	return cuModuleLoadData(&held->module, image);
}

static CUresult give_module(const struct held *held)
{
	return cuModuleUnload(held->module);
}

/* There is one heap: the last one to raise it is the only one. */
static CUresult take_limit(struct held *held)
{
	size_t now;
	CUresult result = cuCtxGetLimit(&now, CU_LIMIT_MALLOC_HEAP_SIZE);

	if (result != CUDA_SUCCESS || now != heap_bytes)
		return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_PERMITTED : result;
	return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_bytes + held->bytes);
}

static CUresult give_limit(const struct held *held)
{
	(void)held;
	return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_bytes);
}

/* The driver takes the descriptor where it takes the memory. */
static CUresult take_external(struct held *held)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
		.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = held->bytes};

	description.handle.fd = (int)syscall(SYS_memfd_create, "external", 0);
	CUresult result = cuImportExternalMemory(&held->external, &description);
	if (result != CUDA_SUCCESS)
		close(description.handle.fd);
	return result;
}

static CUresult give_external(const struct held *held)
{
	return cuDestroyExternalMemory(held->external);
}

const struct allocation_path allocation_paths[] = {
	{"buffer", take_buffer, give_buffer},
	{"pitch", take_pitch, give_buffer},
	{"managed", take_managed, give_buffer},
	{"async", take_async, give_async},
	{"async_ptsz", take_async_ptsz, give_async_ptsz},
	{"pool", take_pool, give_async},
	{"pool_ptsz", take_pool_ptsz, give_async_ptsz},
	{"physical", take_physical, give_physical},
	{"mapped", take_mapped, give_mapped},
	{"array", take_array, give_array},
	{"mipmapped", take_mipmapped, give_mipmapped},
	{"graph", take_graph, give_graph},
	{"module", take_module, give_module},
	{"limit", take_limit, give_limit},
	{"external", take_external, give_external},
};

const size_t allocation_path_count = sizeof(allocation_paths) / sizeof(allocation_paths[0]);

const struct allocation_path *allocation_path_named(const char *name)
{
	for (size_t i = 0; i < allocation_path_count; i++)
		if (strcmp(allocation_paths[i].name, name) == 0)
			return &allocation_paths[i];
	return NULL;
}

CUresult allocation_open(CUdevice ordinal)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};

	device = ordinal;
	CUresult result = cuInit(0);
	if (result == CUDA_SUCCESS)
		result = cuDevicePrimaryCtxRetain(&context, device);
	if (result == CUDA_SUCCESS)
		result = allocation_enter();
	if (result == CUDA_SUCCESS)
		result = cuMemPoolCreate(&own_pool, &properties);
	if (result == CUDA_SUCCESS)
		result = cuCtxGetLimit(&heap_bytes, CU_LIMIT_MALLOC_HEAP_SIZE);
	return result;
}

CUresult allocation_enter(void)
{
	return cuCtxSetCurrent(context);
}

CUresult allocation_trim(void)
{
	CUmemoryPool pool;
	CUresult result = cuCtxSynchronize();

	if (result == CUDA_SUCCESS)
		result = cuDeviceGetMemPool(&pool, device);
	if (result == CUDA_SUCCESS)
		result = cuMemPoolTrimTo(pool, 0);
	if (result == CUDA_SUCCESS)
		result = cuMemPoolTrimTo(own_pool, 0);
	return result == CUDA_SUCCESS ? cuDeviceGraphMemTrim(device) : result;
}
