/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocation and free nodes. An allocation has its address from the beginning, and memory from its
 * step to the one that frees it. An allocation that no step frees is live until the program or
 * another graph frees it, or its instance is launched again with automatic freeing.
 */
#include "graph_memory.h"

#include <stdlib.h>

struct latch graph_memory;
struct allocation *allocations;

static void set_accessible(struct allocation *allocation, bool accessible)
{
	space_take();
	allocation->region->idle = !accessible;
	space_drop();
}

void allocation_drop(struct allocation *allocation)
{
	if (--allocation->holders > 0)
		return;
	for (struct allocation **link = &allocations; *link; link = &(*link)->next) {
		if (*link == allocation) {
			*link = allocation->next;
			break;
		}
	}
	space_take();
	region_free(allocation->region);
	space_drop();
	free(allocation);
}

void allocation_set_live(struct allocation *allocation, bool live)
{
	if (allocation->live == live)
		return;
	allocation->live = live;
	set_accessible(allocation, live);
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

static CUresult allocation_new(
	CUgraphNode node, CUcontext context, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	struct allocation *allocation = calloc(1, sizeof(*allocation));

	REQUIRE(allocation, CUDA_ERROR_OUT_OF_MEMORY);
	allocation->region = address_new(context, parameters->bytesize);
	if (!allocation->region) {
		free(allocation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	parameters->dptr = allocation->region->base;
	allocation->parameters = *parameters;
	/* The caller's array; the card itself has access without an entry. */
	allocation->parameters.accessDescs = NULL;
	allocation->parameters.accessDescCount = 0;
	allocation->card = parameters->poolProps.location.id;
	allocation->owner = node->graph;
	allocation->holders = 1;
	latch_take(&graph_memory);
	allocation->region->allocation = allocation;
	allocation->next = allocations;
	allocations = allocation;
	latch_drop(&graph_memory);
	node->allocation = allocation;
	node->graph->allocates = true;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(parameters && parameters->bytesize > 0 &&
			parameters->poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
			parameters->poolProps.handleTypes == CU_MEM_HANDLE_TYPE_NONE,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(parameters->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE,
		CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(device_valid(parameters->poolProps.location.id), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(graph_valid(graph) && !graph->owned, CUDA_ERROR_INVALID_VALUE);
	result = node_add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	if (result != CUDA_SUCCESS)
		return result;
	result = allocation_new(*node, context, parameters);
	if (result != CUDA_SUCCESS)
		node_withdraw(*node);
	return result;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && parameters,
		CUDA_ERROR_INVALID_VALUE);
	*parameters = node->allocation->parameters;
	return CUDA_SUCCESS;
}

/* One graph frees an allocation, its own or another, and once. */
static bool claim(struct allocation *allocation, CUgraphNode node)
{
	bool own = allocation->owner == node->graph;

	if (allocation->freed_inside || (own && allocation->freed_elsewhere))
		return false;
	for (CUgraphNode other = node->graph->nodes; other; other = other->next) {
		if (other->type == CU_GRAPH_NODE_TYPE_MEM_FREE && other->allocation == allocation)
			return false;
	}
	allocation->freed_inside = own;
	allocation->freed_elsewhere = !own;
	allocation->holders++;
	node->allocation = allocation;
	node->graph->allocates = true;
	return true;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUdeviceptr pointer)
{
	struct allocation *allocation = NULL;
	struct region *region;
	CUresult result;
	bool claimed;

	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph) && !graph->owned, CUDA_ERROR_INVALID_VALUE);
	result = node_add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE);
	if (result != CUDA_SUCCESS)
		return result;
	latch_take(&graph_memory);
	space_take();
	region = region_at(pointer);
	if (region && region->kind == REGION_GRAPH && region->base == pointer)
		allocation = region->allocation;
	space_drop();
	claimed = allocation && claim(allocation, *node);
	latch_drop(&graph_memory);
	if (!claimed)
		node_withdraw(*node);
	return claimed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && pointer,
		CUDA_ERROR_INVALID_VALUE);
	*pointer = node->allocation->parameters.dptr;
	return CUDA_SUCCESS;
}

void allocation_leave(CUgraphNode node)
{
	if (!node->allocation)
		return;
	latch_take(&graph_memory);
	if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		node->allocation->owner = NULL;
	allocation_drop(node->allocation);
	latch_drop(&graph_memory);
}

void allocation_begin(struct allocation *allocation)
{
	set_accessible(allocation, true);
}

void allocation_end(struct allocation *allocation)
{
	latch_take(&graph_memory);
	if (allocation->live) {
		allocation_set_live(allocation, false);
		reserves_cover();
	} else {
		set_accessible(allocation, false);
	}
	latch_drop(&graph_memory);
}

CUresult graph_memory_give(CUdeviceptr pointer)
{
	struct region *region;
	bool live;

	latch_take(&graph_memory);
	space_take();
	region = region_at(pointer);
	live = region && region->kind == REGION_GRAPH && region->base == pointer &&
	       region->allocation->live;
	space_drop();
	if (live) {
		allocation_set_live(region->allocation, false);
		reserves_cover();
	}
	latch_drop(&graph_memory);
	return live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
