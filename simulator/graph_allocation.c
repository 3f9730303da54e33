/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocation and free nodes. An allocation has its address from the beginning. One that its graph
 * does not free is live from a launch until the program or another graph frees it, or its instance
 * is launched again with automatic freeing. It is held by its nodes, by their instances, and while
 * it is live.
 */
#include "graph_memory.h"

#include <stdlib.h>

struct latch graph_memory;
struct allocation *allocations;

void allocation_drop(struct allocation *allocation)
{
	struct allocation **link = &allocations;

	if (--allocation->holders > 0)
		return;
	while (*link != allocation)
		link = &(*link)->next;
	*link = allocation->next;
	space_take();
	region_free(allocation->region);
	space_drop();
	free(allocation);
}

void allocation_leave(struct allocation *allocation)
{
	latch_take(&graph_memory);
	allocation_drop(allocation);
	latch_drop(&graph_memory);
}

void allocation_set_live(struct allocation *allocation, bool live)
{
	if (allocation->live == live)
		return;
	allocation->live = live;
	space_take();
	allocation->region->idle = !live;
	space_drop();
	if (live)
		allocation->holders++;
	else
		allocation_drop(allocation);
}

static struct region *address_new(CUcontext context, size_t bytes)
{
	uint64_t units = bytes / UNIT_BYTES + (bytes % UNIT_BYTES != 0);
	struct region *region = NULL;

	space_take();
	if (space_ready() && units < UINT32_MAX)
		region = region_new(REGION_GRAPH, (uint32_t)units, 1);
	if (region) {
		region->context = context;
		region->bytes = bytes;
		region->idle = true;
	}
	space_drop();
	return region;
}

static struct allocation *allocation_new(CUcontext context, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	struct region *region = address_new(context, parameters->bytesize);
	struct allocation *allocation = region ? calloc(1, sizeof(*allocation)) : NULL;

	if (!allocation)
		return NULL;
	parameters->dptr = region->base;
	*allocation = (struct allocation){.region = region,
		.parameters = *parameters,
		.card = parameters->poolProps.location.id,
		.holders = 1};
	/* The caller's array; the card itself has access without an entry. */
	allocation->parameters.accessDescs = NULL;
	allocation->parameters.accessDescCount = 0;
	latch_take(&graph_memory);
	allocation->next = allocations;
	allocations = allocation;
	latch_drop(&graph_memory);
	return allocation;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	struct allocation *allocation;
	CUresult result;

	(void)dependencies, (void)count;
	REQUIRE_CONTEXT(context);
	REQUIRE(parameters && parameters->bytesize > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(parameters->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE,
		CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(device_valid(parameters->poolProps.location.id), CUDA_ERROR_INVALID_DEVICE);
	allocation = allocation_new(context, parameters);
	REQUIRE(allocation, CUDA_ERROR_OUT_OF_MEMORY);
	result = node_add(node, graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0);
	if (result == CUDA_SUCCESS)
		(*node)->allocation = allocation;
	else
		allocation_leave(allocation);
	return result;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	REQUIRE_DRIVER();
	REQUIRE(node && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && parameters,
		CUDA_ERROR_INVALID_VALUE);
	*parameters = node->allocation->parameters;
	return CUDA_SUCCESS;
}

/* With the latch held: the allocation that starts at this address. */
static struct allocation *allocation_at(CUdeviceptr pointer)
{
	struct allocation *allocation = allocations;

	while (allocation && allocation->parameters.dptr != pointer)
		allocation = allocation->next;
	return allocation;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUdeviceptr pointer)
{
	struct allocation *allocation;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	(void)dependencies, (void)count;
	REQUIRE_DRIVER();
	latch_take(&graph_memory);
	allocation = allocation_at(pointer);
	if (allocation)
		result = node_add(node, graph, CU_GRAPH_NODE_TYPE_MEM_FREE, 0);
	if (result == CUDA_SUCCESS) {
		(*node)->allocation = allocation;
		allocation->holders++;
	}
	latch_drop(&graph_memory);
	return result;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer)
{
	REQUIRE_DRIVER();
	REQUIRE(node && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && pointer,
		CUDA_ERROR_INVALID_VALUE);
	*pointer = node->allocation->parameters.dptr;
	return CUDA_SUCCESS;
}

CUresult graph_memory_give(CUdeviceptr pointer)
{
	struct allocation *allocation;
	bool live;

	latch_take(&graph_memory);
	allocation = allocation_at(pointer);
	live = allocation && allocation->live;
	if (live) {
		allocation_set_live(allocation, false);
		reserves_cover();
	}
	latch_drop(&graph_memory);
	return live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
