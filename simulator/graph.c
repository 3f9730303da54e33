/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs and their nodes. A node depends only on older ones, so the nodes run in the order in which
 * they were added, whatever their dependencies.
 */
#include "graph_memory.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

bool graph_valid(CUgraph graph)
{
	return graph && graph->kind == OBJECT_GRAPH;
}

static bool node_valid(CUgraphNode node)
{
	return node && node->kind == OBJECT_NODE;
}

CUresult node_add(CUgraphNode *node, CUgraph graph, CUgraphNodeType type, uint64_t duration_ns)
{
	CUgraphNode made;

	REQUIRE(node && graph_valid(graph), CUDA_ERROR_INVALID_VALUE);
	made = calloc(1, sizeof(*made));
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	*made = (struct CUgraphNode_st){
		.kind = OBJECT_NODE, .type = type, .duration_ns = duration_ns};
	if (graph->last)
		graph->last->next = made;
	else
		graph->nodes = made;
	graph->last = made;
	*node = made;
	return CUDA_SUCCESS;
}

CUresult graph_new(CUgraph *graph)
{
	*graph = calloc(1, sizeof(**graph));
	REQUIRE(*graph, CUDA_ERROR_OUT_OF_MEMORY);
	(*graph)->kind = OBJECT_GRAPH;
	return CUDA_SUCCESS;
}

void graph_free(CUgraph graph)
{
	while (graph->nodes) {
		CUgraphNode node = graph->nodes;

		graph->nodes = node->next;
		if (node->child)
			graph_free(node->child);
		if (node->allocation)
			allocation_leave(node->allocation);
		node->kind = 0;
		free(node);
	}
	graph->kind = 0;
	free(graph);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	REQUIRE_DRIVER();
	REQUIRE(graph && flags == 0, CUDA_ERROR_INVALID_VALUE);
	return graph_new(graph);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph) && !graph->owned, CUDA_ERROR_INVALID_VALUE);
	graph_free(graph);
	return CUDA_SUCCESS;
}

/* Handles as far as there is room; *count then returns their number. */
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	size_t room, found = 0;

	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph) && count, CUDA_ERROR_INVALID_VALUE);
	room = nodes ? *count : 0;
	for (CUgraphNode node = graph->nodes; node; node = node->next) {
		if (found < room)
			nodes[found] = node;
		found++;
	}
	if (!nodes || found < room)
		*count = found;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && type, CUDA_ERROR_INVALID_VALUE);
	*type = node->type;
	return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && node->child && child, CUDA_ERROR_INVALID_VALUE);
	*child = node->child;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	(void)dependencies, (void)count;
	REQUIRE_DRIVER();
	return node_add(node, graph, CU_GRAPH_NODE_TYPE_EMPTY, 0);
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph,
	const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function)
{
	const struct grid grid = {parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ,
		parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ};
	uint64_t duration_ns;
	CUresult result;

	REQUIRE_CONTEXT(context);
	result = launch_duration(function, &grid, parameters->kernelParams, parameters->extra,
		context, &duration_ns);
	return result == CUDA_SUCCESS ? node_add(node, graph, CU_GRAPH_NODE_TYPE_KERNEL,
						duration_scaled(duration_ns))
				      : result;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	(void)dependencies, (void)count;
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	return add_kernel(node, graph, parameters, parameters->func);
}

/* With a kernel handle, which the first version does not have. */
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	(void)dependencies, (void)count;
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	return add_kernel(node, graph, parameters,
		parameters->func ? parameters->func : (CUfunction)(void *)parameters->kern);
}

/* The child moves to the node. */
static CUresult add_child(CUgraphNode *node, CUgraph graph, CUgraph child)
{
	CUresult result;

	REQUIRE(graph_valid(child) && child != graph && !child->owned, CUDA_ERROR_INVALID_VALUE);
	result = node_add(node, graph, CU_GRAPH_NODE_TYPE_GRAPH, 0);
	if (result != CUDA_SUCCESS)
		return result;
	child->owned = true;
	(*node)->child = child;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraphNodeParams *parameters)
{
	REQUIRE_DRIVER();
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	switch (parameters->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return cuGraphAddKernelNode_v2(
			node, graph, dependencies, count, &parameters->kernel);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		REQUIRE(parameters->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
			CUDA_ERROR_NOT_SUPPORTED);
		return add_child(node, graph, parameters->graph.graph);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return cuGraphAddMemAllocNode(node, graph, dependencies, count, &parameters->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return cuGraphAddMemFreeNode(
			node, graph, dependencies, count, parameters->free.dptr);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}
