/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances of graphs: the card time of all nodes, submitted to a stream as one unit of work, and
 * what they allocate. All work of a context is ordered anyway, so nodes never run concurrently, and
 * allocations that follow one another share pages.
 */
#include "graph_memory.h"

#include <stdlib.h>

CUgraphExec instances;

static bool hold(CUgraphExec instance, CUgraphNode node)
{
	struct hold *grown =
		realloc(instance->held, (instance->held_count + 1) * sizeof(*instance->held));

	if (!grown)
		return false;
	instance->held = grown;
	grown[instance->held_count++] = (struct hold){.allocation = node->allocation,
		.frees = node->type == CU_GRAPH_NODE_TYPE_MEM_FREE,
		.alone = true};
	node->allocation->holders++;
	return true;
}

static bool hold_all(CUgraphExec instance, CUgraph graph)
{
	for (CUgraphNode node = graph->nodes; node; node = node->next) {
		instance->duration_ns += node->duration_ns;
		if (node->child && !hold_all(instance, node->child))
			return false;
		if (node->allocation && !hold(instance, node))
			return false;
	}
	return true;
}

static uint64_t granules(const struct allocation *allocation)
{
	return (allocation->parameters.bytesize + GRANULE_BYTES - 1) / GRANULE_BYTES *
	       GRANULE_BYTES;
}

/* The most that is allocated at one time of what the instance frees itself. */
static void measure(CUgraphExec instance)
{
	uint64_t bytes[SIM_CARDS] = {0};

	for (size_t i = 0; i < instance->held_count; i++) {
		for (size_t j = 0; j < i; j++) {
			if (instance->held[i].allocation == instance->held[j].allocation)
				instance->held[i].alone = instance->held[j].alone = false;
		}
	}
	for (size_t i = 0; i < instance->held_count; i++) {
		const struct hold *held = &instance->held[i];
		CUdevice card = held->allocation->card;

		if (held->alone)
			continue;
		if (held->frees)
			bytes[card] -= granules(held->allocation);
		else
			bytes[card] += granules(held->allocation);
		if (instance->scratch_bytes[card] < bytes[card])
			instance->scratch_bytes[card] = bytes[card];
	}
}

static void instance_free(CUgraphExec instance)
{
	latch_take(&graph_memory);
	for (CUgraphExec *link = &instances; *link; link = &(*link)->next) {
		if (*link == instance) {
			*link = instance->next;
			break;
		}
	}
	for (size_t i = 0; i < instance->held_count; i++)
		allocation_drop(instance->held[i].allocation);
	reserves_cover();
	latch_drop(&graph_memory);
	instance->kind = 0;
	free(instance->held);
	free(instance);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph graph, unsigned long long flags)
{
	CUgraphExec instance;
	bool complete;

	REQUIRE_DRIVER();
	REQUIRE(result && graph_valid(graph) && !graph->owned, CUDA_ERROR_INVALID_VALUE);
	/* Graphs cannot launch graphs here. */
	REQUIRE(!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH), CUDA_ERROR_NOT_SUPPORTED);
	instance = calloc(1, sizeof(*instance));
	REQUIRE(instance, CUDA_ERROR_OUT_OF_MEMORY);
	instance->kind = OBJECT_INSTANCE;
	instance->flags = flags;
	latch_take(&graph_memory);
	complete = hold_all(instance, graph);
	measure(instance);
	if (instance->held_count > 0) {
		instance->next = instances;
		instances = instance;
	}
	latch_drop(&graph_memory);
	if (complete)
		*result = instance;
	else
		instance_free(instance);
	return complete ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

CUresult cuGraphInstantiate(
	CUgraphExec *instance, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
	return cuGraphInstantiate_v2(instance, graph, error_node, log, log_bytes);
}

/* What the instance leaves allocated, or what it frees of another's. */
static void set_live(CUgraphExec instance, bool frees, bool live)
{
	for (size_t i = 0; i < instance->held_count; i++) {
		if (instance->held[i].alone && instance->held[i].frees == frees)
			allocation_set_live(instance->held[i].allocation, live);
	}
}

static bool any_live(CUgraphExec instance)
{
	for (size_t i = 0; i < instance->held_count; i++) {
		const struct hold *held = &instance->held[i];

		if (held->alone && !held->frees && held->allocation->live)
			return true;
	}
	return false;
}

/* With the latch held: the pages for a run on the stream, also from the card. */
static CUresult map(CUgraphExec instance, CUstream stream, bool launch)
{
	CUstream before = instance->stream;

	instance->stream = stream;
	if (launch)
		set_live(instance, false, true);
	if (reserves_cover())
		return CUDA_SUCCESS;
	instance->stream = before;
	if (launch)
		set_live(instance, false, false);
	reserves_cover();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* With the latch held: what the last run left allocated must be free. */
static CUresult map_for_launch(CUgraphExec instance, CUstream stream)
{
	CUresult result;

	if (instance->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
		set_live(instance, false, false);
	REQUIRE(!any_live(instance), CUDA_ERROR_INVALID_VALUE);
	result = map(instance, stream, true);
	if (result == CUDA_SUCCESS) {
		set_live(instance, true, false);
		reserves_cover();
	}
	return result;
}

static CUresult start(
	CUgraphExec instance, CUstream handle, enum stream_flavour flavour, bool launch)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	if (stream_captures(stream))
		return capture_refuse(stream); /* no node can hold an instance */
	if (instance->held_count > 0) {
		latch_take(&graph_memory);
		result = launch ? map_for_launch(instance, stream) : map(instance, stream, false);
		latch_drop(&graph_memory);
	}
	if (result == CUDA_SUCCESS && launch && instance->duration_ns > 0)
		queue_submit(stream, instance->duration_ns);
	return result;
}

static CUresult instantiate(CUgraphExec *instance, CUgraph graph,
	CUDA_GRAPH_INSTANTIATE_PARAMS *parameters, enum stream_flavour flavour)
{
	CUgraphExec made = NULL;
	CUresult result;

	REQUIRE(instance && parameters, CUDA_ERROR_INVALID_VALUE);
	result = cuGraphInstantiateWithFlags(&made, graph, parameters->flags);
	if (result == CUDA_SUCCESS && parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
		result = start(made, parameters->hUploadStream, flavour, false);
	if (result == CUDA_SUCCESS)
		*instance = made;
	else if (made)
		instance_free(made);
	parameters->hErrNode_out = NULL;
	parameters->result_out = result == CUDA_SUCCESS ? 0 : 1;
	return result;
}

CUresult cuGraphInstantiateWithParams(
	CUgraphExec *instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiate(instance, graph, parameters, STREAM_LEGACY);
}

CUresult cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *instance, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiate(instance, graph, parameters, STREAM_PER_THREAD);
}

CUresult cuGraphExecDestroy(CUgraphExec instance)
{
	REQUIRE_DRIVER();
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	instance_free(instance);
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream)
{
	return start(instance, stream, STREAM_LEGACY, true);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec instance, CUstream stream)
{
	return start(instance, stream, STREAM_PER_THREAD, true);
}

CUresult cuGraphUpload(CUgraphExec instance, CUstream stream)
{
	return start(instance, stream, STREAM_LEGACY, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec instance, CUstream stream)
{
	return start(instance, stream, STREAM_PER_THREAD, false);
}
