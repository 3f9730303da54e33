/* SPDX-License-Identifier: Apache-2.0
 *
 * The content of nodes, by type: adding and querying them. Kernels are in graph_kernel.c.
 */
#include "graph.h"

CUresult cuGraphAddEmptyNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	REQUIRE_DRIVER();
	return node_add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY);
}

static CUresult add_content(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraphNodeType type, const union content *content)
{
	CUresult result = node_add(node, graph, dependencies, count, type);

	if (result == CUDA_SUCCESS)
		(*node)->content = *content;
	return result;
}

static CUresult content_of(
	CUgraphNode node, CUgraphNodeType type, const void *room, const union content **content)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && node->type == type && room, CUDA_ERROR_INVALID_VALUE);
	*content = &node->content;
	return CUDA_SUCCESS;
}

/* Adding a node whose parameters are one part of the content, and querying them. */
#define PARAMETERS_GETTER(name, part_type, part, type)                                             \
	CUresult name(CUgraphNode node, part_type *parameters)                                     \
	{                                                                                          \
		const union content *content;                                                      \
		CUresult result = content_of(node, type, parameters, &content);                    \
                                                                                                   \
		if (result == CUDA_SUCCESS)                                                        \
			*parameters = content->part;                                               \
		return result;                                                                     \
	}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_MEMCPY3D *copy, CUcontext context)
{
	REQUIRE_DRIVER();
	REQUIRE(copy, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	return add_content(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY,
		&(union content){.copy = *copy});
}

PARAMETERS_GETTER(cuGraphMemcpyNodeGetParams, CUDA_MEMCPY3D, copy, CU_GRAPH_NODE_TYPE_MEMCPY)

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
	REQUIRE_DRIVER();
	REQUIRE(parameters && (parameters->elementSize == 1 || parameters->elementSize == 2 ||
				      parameters->elementSize == 4),
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(context_valid(context), CUDA_ERROR_INVALID_CONTEXT);
	return add_content(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET,
		&(union content){.fill = *parameters});
}

PARAMETERS_GETTER(
	cuGraphMemsetNodeGetParams, CUDA_MEMSET_NODE_PARAMS, fill, CU_GRAPH_NODE_TYPE_MEMSET)

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_HOST_NODE_PARAMS *parameters)
{
	REQUIRE_DRIVER();
	REQUIRE(parameters && parameters->fn, CUDA_ERROR_INVALID_VALUE);
	return add_content(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_HOST,
		&(union content){.host = *parameters});
}

PARAMETERS_GETTER(cuGraphHostNodeGetParams, CUDA_HOST_NODE_PARAMS, host, CU_GRAPH_NODE_TYPE_HOST)

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraphNodeType type, CUevent event)
{
	REQUIRE_DRIVER();
	REQUIRE(event && event->kind == OBJECT_EVENT, CUDA_ERROR_INVALID_HANDLE);
	return add_content(
		node, graph, dependencies, count, type, &(union content){.event = event});
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph,
	const CUgraphNode *dependencies, size_t count, CUevent event)
{
	return add_event(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

PARAMETERS_GETTER(cuGraphEventRecordNodeGetEvent, CUevent, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD)

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUevent event)
{
	return add_event(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

PARAMETERS_GETTER(cuGraphEventWaitNodeGetEvent, CUevent, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT)

/* The child belongs to the node: a copy of it, or with `move` the original. */
static CUresult add_child(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraph child, bool move)
{
	CUgraph own = child;
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(graph_valid(child) && child != graph && !child->owned, CUDA_ERROR_INVALID_VALUE);
	result = node_add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH);
	if (result != CUDA_SUCCESS)
		return result;
	if (!move)
		result = graph_copy(&own, child);
	if (result != CUDA_SUCCESS) {
		node_withdraw(*node);
		return result;
	}
	own->owned = true;
	(*node)->child = own;
	graph->allocates |= own->allocates;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraph child)
{
	return add_child(node, graph, dependencies, count, child, false);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_GRAPH && child,
		CUDA_ERROR_INVALID_VALUE);
	*child = node->child;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && type, CUDA_ERROR_INVALID_VALUE);
	*type = node->type;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, CUgraphNodeParams *parameters)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	switch (parameters->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return cuGraphAddKernelNode_v2(
			node, graph, dependencies, count, &parameters->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return cuGraphAddMemcpyNode(
			node, graph, dependencies, count, &parameters->memcpy.copyParams, context);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return cuGraphAddMemsetNode(
			node, graph, dependencies, count, &parameters->memset, context);
	case CU_GRAPH_NODE_TYPE_HOST:
		return cuGraphAddHostNode(node, graph, dependencies, count, &parameters->host);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return add_child(node, graph, dependencies, count, parameters->graph.graph,
			parameters->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return cuGraphAddEmptyNode(node, graph, dependencies, count);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return cuGraphAddEventWaitNode(
			node, graph, dependencies, count, parameters->eventWait.event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return cuGraphAddEventRecordNode(
			node, graph, dependencies, count, parameters->eventRecord.event);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return cuGraphAddMemAllocNode(node, graph, dependencies, count, &parameters->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return cuGraphAddMemFreeNode(
			node, graph, dependencies, count, parameters->free.dptr);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/* Kernels end as a whole here: a dependency on part of one is on all of it. */
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
	(void)edges;
	return cuGraphAddNode(node, graph, dependencies, count, parameters);
}
