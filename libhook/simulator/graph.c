/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs of kernels. Work within a context has one order as it is, so dependencies are not kept: an
 * instance is the sum of its kernels' durations, given to a stream at once.
 */
#include "launch.h"

#include <stdlib.h>

#define NODE_KERNEL 0 /* of CUgraphNodeType */
#define NODE_EMPTY 5

struct CUgraphNode_st {
	uint32_t kind;
	int type;
	uint64_t duration_ns;
	struct CUgraphNode_st *next;
};

struct CUgraph_st {
	uint32_t kind;
	struct CUgraphNode_st *nodes;
};

struct CUgraphExec_st {
	uint32_t kind;
	uint64_t duration_ns;
};

static bool graph_valid(CUgraph graph)
{
	return graph && graph->kind == OBJECT_GRAPH;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	REQUIRE_DRIVER();
	REQUIRE(graph && flags == 0, CUDA_ERROR_INVALID_VALUE);
	*graph = calloc(1, sizeof(**graph));
	REQUIRE(*graph, CUDA_ERROR_OUT_OF_MEMORY);
	(*graph)->kind = OBJECT_GRAPH;
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph), CUDA_ERROR_INVALID_VALUE);
	while (graph->nodes) {
		CUgraphNode node = graph->nodes;

		graph->nodes = node->next;
		node->kind = 0;
		free(node);
	}
	graph->kind = 0;
	free(graph);
	return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t dependency_count, int type, uint64_t duration_ns)
{
	CUgraphNode *link;

	REQUIRE(node && graph_valid(graph) && (dependencies || dependency_count == 0),
		CUDA_ERROR_INVALID_VALUE);
	*node = calloc(1, sizeof(**node));
	REQUIRE(*node, CUDA_ERROR_OUT_OF_MEMORY);
	**node = (struct CUgraphNode_st){OBJECT_NODE, type, duration_ns, NULL};
	for (link = &graph->nodes; *link; link = &(*link)->next)
		;
	*link = *node;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t dependency_count)
{
	REQUIRE_DRIVER();
	return add(node, graph, dependencies, dependency_count, NODE_EMPTY, 0);
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t dependency_count, const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function)
{
	uint64_t duration_ns;
	struct grid grid;
	CUresult result;

	REQUIRE_CONTEXT(context);
	grid = (struct grid){parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ,
		parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ};
	/* Parameters are the node's from now on: the caller may change its own. */
	result = launch_duration(function, &grid, parameters->kernelParams, parameters->extra,
		context->card, &duration_ns);
	return result == CUDA_SUCCESS
		       ? add(node, graph, dependencies, dependency_count, NODE_KERNEL, duration_ns)
		       : result;
}

/* The first version's parameters end before the kernel handle. */
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t dependency_count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	return add_kernel(
		node, graph, dependencies, dependency_count, parameters, parameters->func);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t dependency_count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	CUfunction function;

	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	function = parameters->func ? parameters->func : (CUfunction)(void *)parameters->kern;
	return add_kernel(node, graph, dependencies, dependency_count, parameters, function);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	REQUIRE_DRIVER();
	REQUIRE(node && node->kind == OBJECT_NODE && type, CUDA_ERROR_INVALID_VALUE);
	*type = (CUgraphNodeType)node->type;
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	size_t room, found = 0;

	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph) && count, CUDA_ERROR_INVALID_VALUE);
	room = nodes ? *count : 0;
	for (CUgraphNode node = graph->nodes; node; node = node->next, found++) {
		if (found < room)
			nodes[found] = node;
	}
	if (!nodes || found < room)
		*count = found;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *instance, CUgraph graph, unsigned long long flags)
{
	(void)flags; /* about memory and launches from the device, of which there are none */
	REQUIRE_DRIVER();
	REQUIRE(instance && graph_valid(graph), CUDA_ERROR_INVALID_VALUE);
	*instance = calloc(1, sizeof(**instance));
	REQUIRE(*instance, CUDA_ERROR_OUT_OF_MEMORY);
	(*instance)->kind = OBJECT_INSTANCE;
	for (CUgraphNode node = graph->nodes; node; node = node->next)
		(*instance)->duration_ns += node->duration_ns;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate_v2(
	CUgraphExec *instance, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
	if (error_node)
		*error_node = NULL;
	if (log && log_bytes > 0)
		*log = '\0';
	return cuGraphInstantiateWithFlags(instance, graph, 0);
}

static CUresult instantiate(
	CUgraphExec *instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	CUresult result;

	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	result = cuGraphInstantiateWithFlags(instance, graph, parameters->flags);
	parameters->hErrNode_out = NULL;
	parameters->result_out = result == CUDA_SUCCESS ? 0 : 1;
	return result;
}

CUresult cuGraphInstantiateWithParams(
	CUgraphExec *instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiate(instance, graph, parameters);
}

CUresult cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiate(instance, graph, parameters);
}

CUresult cuGraphExecDestroy(CUgraphExec instance)
{
	REQUIRE_DRIVER();
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	instance->kind = 0;
	free(instance);
	return CUDA_SUCCESS;
}

static CUresult launch(
	CUgraphExec instance, CUstream handle, enum stream_flavour flavour, bool upload_only)
{
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	if (!upload_only)
		queue_submit(stream, duration_scaled(instance->duration_ns));
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream)
{
	return launch(instance, stream, STREAM_LEGACY, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec instance, CUstream stream)
{
	return launch(instance, stream, STREAM_PER_THREAD, false);
}

CUresult cuGraphUpload(CUgraphExec instance, CUstream stream)
{
	return launch(instance, stream, STREAM_LEGACY, true);
}

CUresult cuGraphUpload_ptsz(CUgraphExec instance, CUstream stream)
{
	return launch(instance, stream, STREAM_PER_THREAD, true);
}
