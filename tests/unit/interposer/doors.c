/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that takes device memory through the door it is told to, one a line:
 *
 *     take DOOR BYTES    -> ok NUMBER | error CODE
 *     give NUMBER        -> ok | error CODE
 *     sync | trim        -> ok | error CODE    wait for the card; let pools and graphs keep nothing
 *     info               -> ok FREE TOTAL
 *
 * or, with a seed behind, takes and gives at random until it is killed; it says "ready" before.
 *
 *     doors WAY [SEED]    finds the driver by WAY (ways.h)
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "ways.h"

static struct {
#define FUNCTION(function) __typeof__(&function) function;
#include "doors.inc"
#undef FUNCTION
} cu;

static void find_functions(finder *find)
{
#define FUNCTION(function) FIND(&cu.function, find, function);
#include "doors.inc"
#undef FUNCTION
}

#define MOST 4096
#define MIB ((size_t)1 << 20)
#define CUDA_FLOAT 0x20
#define ROW ((size_t)4096 * 4 * 4) /* bytes, of an array */

struct held {
	const struct door *door; /* NULL: nothing here */
	size_t bytes;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	union {
		CUarray array;
		CUmipmappedArray mipmapped;
		CUgraphExec executable;
		CUmodule module;
		CUexternalMemory external;
	};
};

struct door {
	const char *name;
	CUresult (*take)(struct held *held);
	CUresult (*give)(const struct held *held);
};

static CUmemoryPool own_pool;
static size_t heap_bytes; /* before anybody raised it */

static CUresult take_buffer(struct held *held)
{
	return cu.cuMemAlloc_v2(&held->address, held->bytes);
}

static CUresult take_pitch(struct held *held)
{
	size_t pitch;

	return cu.cuMemAllocPitch_v2(&held->address, &pitch, MIB, (held->bytes + MIB - 1) / MIB, 4);
}

static CUresult take_managed(struct held *held)
{
	return cu.cuMemAllocManaged(&held->address, held->bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult give_buffer(const struct held *held)
{
	return cu.cuMemFree_v2(held->address);
}

static CUresult take_async(struct held *held)
{
	return cu.cuMemAllocAsync(&held->address, held->bytes, NULL);
}

static CUresult give_async(const struct held *held)
{
	return cu.cuMemFreeAsync(held->address, NULL);
}

static CUresult take_async_ptsz(struct held *held)
{
	return cu.cuMemAllocAsync_ptsz(&held->address, held->bytes, NULL);
}

static CUresult give_async_ptsz(const struct held *held)
{
	return cu.cuMemFreeAsync_ptsz(held->address, NULL);
}

static CUresult take_pool(struct held *held)
{
	return cu.cuMemAllocFromPoolAsync(&held->address, held->bytes, own_pool, NULL);
}

static CUresult take_pool_ptsz(struct held *held)
{
	return cu.cuMemAllocFromPoolAsync_ptsz(&held->address, held->bytes, own_pool, NULL);
}

static CUmemAllocationProp on_card(void)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static CUresult take_physical(struct held *held)
{
	CUmemAllocationProp properties = on_card();

	return cu.cuMemCreate(&held->handle, held->bytes, &properties, 0);
}

static CUresult give_physical(const struct held *held)
{
	return cu.cuMemRelease(held->handle);
}

/* As allocators do: the handle goes as soon as the memory is mapped. */
static CUresult take_mapped(struct held *held)
{
	CUresult result = take_physical(held);

	if (result != CUDA_SUCCESS)
		return result;
	result = cu.cuMemAddressReserve(&held->address, held->bytes, 0, 0, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuMemMap(held->address, held->bytes, 0, held->handle, 0);
	cu.cuMemRelease(held->handle);
	return result;
}

static CUresult give_mapped(const struct held *held)
{
	CUresult result = cu.cuMemUnmap(held->address, held->bytes);

	return result == CUDA_SUCCESS ? cu.cuMemAddressFree(held->address, held->bytes) : result;
}

static CUresult take_array(struct held *held)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 4096,
		.Height = (held->bytes + ROW - 1) / ROW,
		.Format = CUDA_FLOAT,
		.NumChannels = 4};

	return cu.cuArray3DCreate_v2(&held->array, &shape);
}

static CUresult give_array(const struct held *held)
{
	return cu.cuArrayDestroy(held->array);
}

static CUresult take_mipmapped(struct held *held)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 4096,
		.Height = (held->bytes + ROW - 1) / ROW,
		.Format = CUDA_FLOAT,
		.NumChannels = 4};

	return cu.cuMipmappedArrayCreate(&held->mipmapped, &shape, 1);
}

static CUresult give_mipmapped(const struct held *held)
{
	return cu.cuMipmappedArrayDestroy(held->mipmapped);
}

/* What a graph allocates and does not free itself is the program's, as any other memory. */
static CUresult graph_build(CUgraph graph, struct held *held)
{
	CUDA_MEM_ALLOC_NODE_PARAMS allocation = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
		.bytesize = held->bytes};
	CUgraphNode node;
	CUresult result = cu.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation);

	held->address = allocation.dptr;
	return result;
}

static CUresult take_graph(struct held *held)
{
	CUgraph graph;
	CUgraphExec executable = NULL;
	CUresult result = cu.cuGraphCreate(&graph, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = graph_build(graph, held);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphInstantiateWithFlags(&executable, graph, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphLaunch(executable, NULL);
	if (result != CUDA_SUCCESS && executable)
		cu.cuGraphExecDestroy(executable);
	cu.cuGraphDestroy(graph);
	held->executable = executable;
	return result;
}

static CUresult give_graph(const struct held *held)
{
	CUresult result = cu.cuMemFreeAsync(held->address, NULL);

	if (result == CUDA_SUCCESS)
		result = cu.cuCtxSynchronize();
	return result == CUDA_SUCCESS ? cu.cuGraphExecDestroy(held->executable) : result;
}

static CUresult take_module(struct held *held)
{
	char image[256];

	snprintf(image, sizeof(image),
		".version 7.0\n.target sm_70\n.address_size 64\n"
		".visible .global .align 16 .b8 room[%zu];\n",
		held->bytes);
	return cu.cuModuleLoadData(&held->module, image);
}

static CUresult give_module(const struct held *held)
{
	return cu.cuModuleUnload(held->module);
}

/* There is one heap: the last one to raise it is the only one. */
static CUresult take_limit(struct held *held)
{
	size_t now;
	CUresult result = cu.cuCtxGetLimit(&now, CU_LIMIT_MALLOC_HEAP_SIZE);

	if (result != CUDA_SUCCESS || now != heap_bytes)
		return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_PERMITTED : result;
	return cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_bytes + held->bytes);
}

static CUresult give_limit(const struct held *held)
{
	(void)held;
	return cu.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_bytes);
}

/* The driver takes the descriptor where it takes the memory. */
static CUresult take_external(struct held *held)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
		.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = held->bytes};

	description.handle.fd = (int)syscall(SYS_memfd_create, "external", 0);
	CUresult result = cu.cuImportExternalMemory(&held->external, &description);
	if (result != CUDA_SUCCESS)
		close(description.handle.fd);
	return result;
}

static CUresult give_external(const struct held *held)
{
	return cu.cuDestroyExternalMemory(held->external);
}

static const struct door doors[] = {
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

#define DOORS (sizeof(doors) / sizeof(doors[0]))

static struct held holding[MOST];

static void die(const char *what, CUresult result)
{
	fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
	exit(2);
}

static void start(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUcontext context;
	CUresult result = cu.cuInit(0);

	if (result == CUDA_SUCCESS)
		result = cu.cuDevicePrimaryCtxRetain(&context, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuCtxSetCurrent(context);
	if (result == CUDA_SUCCESS)
		result = cu.cuMemPoolCreate(&own_pool, &properties);
	if (result == CUDA_SUCCESS)
		result = cu.cuCtxGetLimit(&heap_bytes, CU_LIMIT_MALLOC_HEAP_SIZE);
	if (result != CUDA_SUCCESS)
		die("start", result);
}

static const struct door *door_named(const char *name)
{
	for (size_t i = 0; i < DOORS; i++)
		if (strcmp(doors[i].name, name) == 0)
			return &doors[i];
	fprintf(stderr, "there is no door %s\n", name);
	exit(2);
}

/* The number of what was taken, or minus the error. */
static int take(const struct door *door, size_t bytes)
{
	struct held held = {.door = door, .bytes = bytes};
	CUresult result = door->take(&held);
	int number = 0;

	if (result != CUDA_SUCCESS)
		return -(int)result;
	while (number < MOST && holding[number].door)
		number++;
	if (number == MOST)
		die("too much is held", CUDA_SUCCESS);
	holding[number] = held;
	return number;
}

static CUresult give(int number)
{
	struct held *held = &holding[number];
	CUresult result = held->door->give(held);

	if (result == CUDA_SUCCESS)
		held->door = NULL;
	return result;
}

static CUresult trim(void)
{
	CUmemoryPool pool;
	CUresult result = cu.cuCtxSynchronize();

	if (result == CUDA_SUCCESS)
		result = cu.cuDeviceGetMemPool(&pool, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuMemPoolTrimTo(pool, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuMemPoolTrimTo(own_pool, 0);
	return result == CUDA_SUCCESS ? cu.cuDeviceGraphMemTrim(0) : result;
}

static void answer(CUresult result)
{
	if (result == CUDA_SUCCESS)
		printf("ok\n");
	else
		printf("error %d\n", (int)result);
}

static void answer_info(void)
{
	size_t left, total;
	CUresult result = cu.cuMemGetInfo_v2(&left, &total);

	if (result == CUDA_SUCCESS)
		printf("ok %zu %zu\n", left, total);
	else
		answer(result);
}

static void serve(void)
{
	char line[128], word[16], name[32];
	size_t number;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "take %31s %zu", name, &number) == 2) {
			int taken = take(door_named(name), number);
			if (taken >= 0)
				printf("ok %d\n", taken);
			else
				printf("error %d\n", -taken);
		} else if (sscanf(line, "give %zu", &number) == 1 && number < MOST) {
			answer(give((int)number));
		} else if (sscanf(line, "%15s", word) != 1) {
			continue;
		} else if (strcmp(word, "sync") == 0) {
			answer(cu.cuCtxSynchronize());
		} else if (strcmp(word, "trim") == 0) {
			answer(trim());
		} else if (strcmp(word, "info") == 0) {
			answer_info();
		} else {
			fprintf(stderr, "not understood: %s", line);
			exit(2);
		}
		fflush(stdout);
	}
}

static uint32_t draw(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

static void mix(uint32_t state)
{
	int taken[8];
	int count = 0;

	for (;;) {
		uint32_t drawn = draw(&state);
		if (count > 0 && (drawn & 1 || count == 8)) {
			int which = (int)(draw(&state) % (uint32_t)count);
			if (give(taken[which]) != CUDA_SUCCESS)
				exit(3);
			taken[which] = taken[--count];
		} else {
			int number = take(
				&doors[draw(&state) % DOORS], (draw(&state) % 8 + 1) * 2 * MIB);
			if (number >= 0)
				taken[count++] = number;
		}
		if (drawn % 16 == 2)
			trim();
	}
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	find_functions(way_named(argv[1]));
	start();
	if (argc == 3) {
		printf("ready\n");
		fflush(stdout);
		mix((uint32_t)strtoul(argv[2], NULL, 10));
	}
	serve();
	return 0;
}
