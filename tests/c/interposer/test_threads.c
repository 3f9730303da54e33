/* SPDX-License-Identifier: Apache-2.0
 *
 * The filter over the simulator, both as they are built here: threads that take memory through each
 * kind of allocation at once and give back each other's, while contexts, pools and streams are made
 * and destroyed, memory is exported and imported, the process forks, and others wait and look. For
 * the sanitizers; what is left at the end is known exactly.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "device_file.h"
#include "nvml_api.h"
#include "tenant.h"

#define QUOTA (384 * MIB)
#define PLACES 24
#define BODIES 10 /* threads at once, at the most */

#define ROUNDS 2000

#define CUDA_FLOAT 0x20
#define ROW ((size_t)4096 * 4 * 4) /* bytes, of an array */

/* What was taken through an allocation path, as that one notes it. */
struct held {
	const struct allocation_path *path; /* NULL: nothing here */
	size_t bytes;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	union {
		CUarray array;
		CUgraphExec executable;
		CUmodule module;
	};
};

struct allocation_path {
	CUresult (*take)(struct held *held); /* held->bytes of them */
	CUresult (*give)(const struct held *held);
};

static CUcontext primary;
static CUmemoryPool own_pool;
static size_t heap_bytes; /* before anybody raised it */

static CUresult take_buffer(struct held *held)
{
	return cuMemAlloc_v2(&held->address, held->bytes);
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

static CUresult take_pool(struct held *held)
{
	return cuMemAllocFromPoolAsync(&held->address, held->bytes, own_pool, NULL);
}

static CUmemAllocationProp on_card(void)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
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

/* What a graph allocates and does not free itself is the program's, as any other memory. */
static CUresult graph_build(CUgraph graph, struct held *held)
{
	CUDA_MEM_ALLOC_NODE_PARAMS allocation = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
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

static const struct allocation_path paths[] = {
	{take_buffer, give_buffer},
	{take_managed, give_buffer},
	{take_async, give_async},
	{take_pool, give_async},
	{take_physical, give_physical},
	{take_mapped, give_mapped},
	{take_array, give_array},
	{take_graph, give_graph},
	{take_module, give_module},
	{take_limit, give_limit},
};

#define PATHS (sizeof(paths) / sizeof(paths[0]))

static CUresult allocation_enter(void)
{
	return cuCtxSetCurrent(primary);
}

static CUresult allocation_open(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

	CUresult result = cuInit(0);
	if (result == CUDA_SUCCESS)
		result = cuDevicePrimaryCtxRetain(&primary, 0);
	if (result == CUDA_SUCCESS)
		result = allocation_enter();
	if (result == CUDA_SUCCESS)
		result = cuMemPoolCreate(&own_pool, &properties);
	if (result == CUDA_SUCCESS)
		result = cuCtxGetLimit(&heap_bytes, CU_LIMIT_MALLOC_HEAP_SIZE);
	return result;
}

static CUresult allocation_trim(void)
{
	CUmemoryPool pool;
	CUresult result = cuCtxSynchronize();

	if (result == CUDA_SUCCESS)
		result = cuDeviceGetMemPool(&pool, 0);
	if (result == CUDA_SUCCESS)
		result = cuMemPoolTrimTo(pool, 0);
	if (result == CUDA_SUCCESS)
		result = cuMemPoolTrimTo(own_pool, 0);
	return result == CUDA_SUCCESS ? cuDeviceGraphMemTrim(0) : result;
}

static pthread_mutex_t swapping = PTHREAD_MUTEX_INITIALIZER;
static struct held places[PLACES];
static _Atomic unsigned int taken, refused;

static uint32_t draw(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

/* Whether it was given; all that may be wrong is that there is no room. */
static bool given(CUresult result)
{
	CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
	return result == CUDA_SUCCESS;
}

/* Put something into a place, for what is there. */
static struct held swap(uint32_t place, struct held held)
{
	pthread_mutex_lock(&swapping);
	struct held there = places[place];
	places[place] = held;
	pthread_mutex_unlock(&swapping);
	return there;
}

static void give(struct held held)
{
	if (held.path)
		CHECK(held.path->give(&held) == CUDA_SUCCESS);
}

static void take(const struct allocation_path *path, uint32_t place, size_t bytes)
{
	struct held held = {.path = path, .bytes = bytes};
	CUresult result = path->take(&held);

	if (result == CUDA_SUCCESS) {
		taken++;
		give(swap(place, held));
		return;
	}
	/* The heap is there once. */
	CHECK(result == CUDA_ERROR_OUT_OF_MEMORY ||
		(result == CUDA_ERROR_NOT_PERMITTED && path->take == take_limit));
	refused++;
	give(swap(place, (struct held){0}));
}

static void *take_and_give(void *seed)
{
	uint32_t state = (uint32_t)(uintptr_t)seed;

	CHECK(allocation_enter() == CUDA_SUCCESS);
	for (int round = 0; round < ROUNDS; round++) {
		const struct allocation_path *path = &paths[draw(&state) % PATHS];
		uint32_t place = draw(&state) % PLACES;
		take(path, place, (draw(&state) % 16 + 1) * 2 * MIB);
	}
	return NULL;
}

static void *wait_and_look(void *unused)
{
	size_t left, total;

	CHECK(allocation_enter() == CUDA_SUCCESS);
	for (int round = 0; round < ROUNDS / 4; round++) {
		CHECK(cuMemGetInfo_v2(&left, &total) == CUDA_SUCCESS);
		CHECK(left <= total && total == QUOTA);
		CHECK(allocation_trim() == CUDA_SUCCESS);
	}
	return unused;
}

static void *look_by_nvml(void *unused)
{
	nvmlProcessInfo_v2_t processes[4];
	nvmlMemory_t memory;
	nvmlDevice_t card;

	CHECK(nvmlInit_v2() == NVML_SUCCESS);
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &card) == NVML_SUCCESS);
	for (int round = 0; round < ROUNDS / 4; round++) {
		unsigned int count = sizeof(processes) / sizeof(processes[0]);
		CHECK(nvmlDeviceGetMemoryInfo(card, &memory) == NVML_SUCCESS);
		/* What is about to be refused counts for a moment. */
		CHECK(memory.total == QUOTA && memory.used + memory.free >= QUOTA);
		CHECK(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, processes) ==
			NVML_SUCCESS);
		CHECK(count == 1 && processes[0].pid == (unsigned int)getpid());
	}
	CHECK(nvmlShutdown() == NVML_SUCCESS);
	return unused;
}

/* Imported where it was exported, it stays until both handles are gone. */
static void export_physical(void)
{
	const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle made, imported;
	int descriptor;

	if (!given(cuMemCreate(&made, 2 * MIB, &properties, 0)))
		return;
	CHECK(cuMemExportToShareableHandle(&descriptor, made,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	CHECK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)descriptor,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
	close(descriptor);
	CHECK(cuMemRelease(made) == CUDA_SUCCESS);
	CHECK(cuMemRelease(imported) == CUDA_SUCCESS);
}

static void export_buffer(void)
{
	CUipcMemHandle handle;
	CUdeviceptr pointer;

	if (!given(cuMemAlloc_v2(&pointer, 2 * MIB)))
		return;
	CHECK(cuIpcGetMemHandle(&handle, pointer) == CUDA_SUCCESS);
	CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS);
}

static void *export_memory(void *unused)
{
	CHECK(allocation_enter() == CUDA_SUCCESS);
	for (int round = 0; round < ROUNDS / 4; round++) {
		export_physical();
		export_buffer();
	}
	return unused;
}

/* Whatever a context has ends with it. */
static void *make_contexts(void *unused)
{
	for (int round = 0; round < ROUNDS / 4; round++) {
		CUdeviceptr pointer;
		CUcontext context;

		if (!given(cuCtxCreate_v2(&context, 0, 0)))
			continue;
		cuMemAlloc_v2(&pointer, 2 * MIB);
		cuMemAllocManaged(&pointer, 2 * MIB, CU_MEM_ATTACH_GLOBAL);
		CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	}
	return unused;
}

/* A pool is destroyed while some of it is held; the rest of it ends with that. */
static void *make_pools(void *unused)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

	CHECK(allocation_enter() == CUDA_SUCCESS);
	for (int round = 0; round < ROUNDS / 2; round++) {
		CUdeviceptr pointer;
		CUmemoryPool pool;
		CUstream stream;

		CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
		CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
		const bool has = given(cuMemAllocFromPoolAsync(&pointer, 2 * MIB, pool, stream));
		CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
		if (has)
			CHECK(cuMemFreeAsync(pointer, stream) == CUDA_SUCCESS);
		CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	}
	return unused;
}

/* It has no driver, and must not wait for a lock that a thread of its parent held. */
static void ask_in_child(void)
{
	CUdeviceptr pointer;
	size_t left, total;

	alarm(60);
	CHECK(cuMemAlloc_v2(&pointer, 2 * MIB) != CUDA_SUCCESS);
	CHECK(cuMemAllocAsync(&pointer, 2 * MIB, NULL) != CUDA_SUCCESS);
	cuMemFree_v2(2 * MIB);
	cuMemGetInfo_v2(&left, &total);
	CHECK(cuInit(0) != CUDA_SUCCESS);
}

static void *fork_children(void *unused)
{
	for (int round = 0; round < ROUNDS / 16; round++)
		CHECK(in_child(ask_in_child) == 0);
	return unused;
}

/* What every thread of a program does that does not know of the others. */
static void *begin_and_end(void *unused)
{
	CUdeviceptr pointer;
	CUcontext context;

	CHECK(cuInit(0) == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	CHECK(cuMemAllocAsync(&pointer, MIB, NULL) == CUDA_SUCCESS);
	CHECK(cuMemFreeAsync(pointer, NULL) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&pointer, MIB) == CUDA_SUCCESS);
	CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS);
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
	CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	return unused;
}

static void run_at_once(void *(*const bodies[])(void *), size_t count)
{
	pthread_t threads[BODIES];

	for (size_t i = 0; i < count; i++)
		CHECK(pthread_create(&threads[i], NULL, bodies[i], (void *)(uintptr_t)(i + 1)) ==
			0);
	for (size_t i = 0; i < count; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static void threads_may_all_begin_at_once(void)
{
	void *(*const bodies[])(void *) = {begin_and_end, begin_and_end, begin_and_end,
		begin_and_end, begin_and_end, begin_and_end, begin_and_end, begin_and_end};

	run_at_once(bodies, sizeof(bodies) / sizeof(bodies[0]));
	CHECK(tenant_used_bytes() == 0);
}

static void all_at_once(void)
{
	void *(*const bodies[])(void *) = {take_and_give, take_and_give, take_and_give,
		wait_and_look, look_by_nvml, make_contexts, make_pools, export_memory,
		fork_children};

	run_at_once(bodies, sizeof(bodies) / sizeof(bodies[0]));
}

static void nothing_is_left_of_many_threads_work(void)
{
	all_at_once();
	CHECK(taken > 0 && refused > 0);
	for (uint32_t place = 0; place < PLACES; place++)
		give(swap(place, (struct held){0}));
	CHECK(allocation_trim() == CUDA_SUCCESS);
	CHECK(tenant_used_bytes() == 0);
}

int main(void)
{
	device_file_make();
	tenant_create(QUOTA);
	strcpy(tenant_card()->uuid, FIRST_CARD_UUID);
	TEST(threads_may_all_begin_at_once);
	CHECK(allocation_open() == CUDA_SUCCESS);
	TEST(nothing_is_left_of_many_threads_work);
	return 0;
}
