/* SPDX-License-Identifier: Apache-2.0
 *
 * Instances of graphs: the nodes' steps, submitted to a stream one after another. All work of a
 * context is ordered anyway, so the order of the nodes is kept and they never run concurrently.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* A child graph has two steps in addition to its nodes: its beginning and its end. */
static size_t count_steps(CUgraph graph)
{
	size_t count = 0;

	for (CUgraphNode node = graph->nodes; node; node = node->next)
		count += node->child ? 2 + count_steps(node->child) : 1;
	return count;
}

static struct step *step_new(CUgraphExec instance, CUgraphNode node)
{
	struct step *step = &instance->steps[instance->step_count++];

	step->type = node->child ? CU_GRAPH_NODE_TYPE_EMPTY : node->type;
	step->content = node->content;
	step->node = node;
	step->allocation = node->allocation;
	return step;
}

/* `step` comes after `other`, and after all that this one comes after. */
static void step_follow(CUgraphExec instance, struct step *step, size_t other, size_t words)
{
	const uint64_t *before = instance->steps[other].after;

	if (!step->after)
		return;
	for (size_t word = 0; word < words; word++)
		step->after[word] |= before[word];
	step->after[other / 64] |= UINT64_C(1) << other % 64;
}

/* The graph's nodes, after the step `start` if there is one. */
static void unfold(CUgraphExec instance, CUgraph graph, const size_t *start, size_t words)
{
	for (CUgraphNode node = graph->nodes; node; node = node->next) {
		size_t first = instance->step_count;
		struct step *step = step_new(instance, node);

		if (start)
			step_follow(instance, step, *start, words);
		for (size_t i = 0; i < node->dependency_count; i++)
			step_follow(instance, step, node->dependencies[i]->step, words);
		if (node->child) {
			unfold(instance, node->child, &first, words);
			step = step_new(instance, node);
			for (size_t i = first; &instance->steps[i] != step; i++)
				step_follow(instance, step, i, words);
		}
		node->step = instance->step_count - 1;
	}
}

void instance_free(CUgraphExec instance)
{
	if (instance->footprint)
		footprint_free(instance->footprint);
	instance->kind = 0;
	free(instance->steps);
	free(instance->order);
	free(instance);
}

CUresult instance_new(CUgraphExec *result, CUgraph graph, unsigned long long flags)
{
	size_t count = count_steps(graph), words = (count + 63) / 64;
	CUgraphExec instance = calloc(1, sizeof(*instance));
	CUresult status = CUDA_ERROR_OUT_OF_MEMORY;

	REQUIRE(instance, CUDA_ERROR_OUT_OF_MEMORY);
	instance->kind = OBJECT_INSTANCE;
	instance->flags = flags;
	instance->steps = calloc(count + 1, sizeof(*instance->steps));
	if (graph->allocates)
		instance->order = calloc(count * words + 1, sizeof(*instance->order));
	if (instance->steps && (instance->order || !graph->allocates)) {
		for (size_t i = 0; i < count && instance->order; i++)
			instance->steps[i].after = instance->order + i * words;
		unfold(instance, graph, NULL, words);
		status = footprint_new(&instance->footprint, instance);
	}
	if (status == CUDA_SUCCESS)
		*result = instance;
	else
		instance_free(instance);
	return status;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *instance, CUgraph graph, unsigned long long flags)
{
	REQUIRE_DRIVER();
	REQUIRE(instance && graph_valid(graph) && !graph->owned, CUDA_ERROR_INVALID_VALUE);
	/* Graphs cannot launch graphs here. */
	REQUIRE(!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH), CUDA_ERROR_NOT_SUPPORTED);
	return instance_new(instance, graph, flags);
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

static CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS *fill, CUstream stream)
{
	switch (fill->elementSize) {
	case 1:
		return cuMemsetD2D8Async(fill->dst, fill->pitch, (unsigned char)fill->value,
			fill->width, fill->height, stream);
	case 2:
		return cuMemsetD2D16Async(fill->dst, fill->pitch, (unsigned short)fill->value,
			fill->width, fill->height, stream);
	default:
		return cuMemsetD2D32Async(
			fill->dst, fill->pitch, fill->value, fill->width, fill->height, stream);
	}
}

/* All but kernels. */
static CUresult run_step(const struct step *step, CUstream stream)
{
	const union content *content = &step->content;

	switch (step->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return cuMemcpy3DAsync_v2(&content->copy, stream);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return run_fill(&content->fill, stream);
	case CU_GRAPH_NODE_TYPE_HOST:
		return cuLaunchHostFunc(stream, content->host.fn, content->host.userData);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return cuEventRecord(content->event, stream);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return cuStreamWaitEvent(stream, content->event, 0);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		allocation_begin(step->allocation);
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		allocation_end(step->allocation);
		return CUDA_SUCCESS;
	default:
		return CUDA_SUCCESS;
	}
}

/* Consecutive kernels are one unit of work. */
static CUresult run(CUgraphExec instance, CUstream stream)
{
	CUresult result = CUDA_SUCCESS;
	uint64_t kernels_ns = 0;

	for (size_t i = 0; i < instance->step_count && result == CUDA_SUCCESS; i++) {
		const struct step *step = &instance->steps[i];

		if (step->type == CU_GRAPH_NODE_TYPE_KERNEL) {
			kernels_ns += step->content.duration_ns;
			continue;
		}
		if (kernels_ns > 0 && step->type != CU_GRAPH_NODE_TYPE_EMPTY) {
			queue_submit(stream, duration_scaled(kernels_ns));
			kernels_ns = 0;
		}
		result = run_step(step, stream);
	}
	if (kernels_ns > 0)
		queue_submit(stream, duration_scaled(kernels_ns));
	return result;
}

static CUresult launch(CUgraphExec instance, CUstream handle, enum stream_flavour flavour)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	if (stream->participant)
		return capture_refuse(
			stream); /* an instance is not a graph that a node could hold */
	if (instance->footprint)
		result = footprint_launch(instance->footprint, stream,
			instance->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	return result == CUDA_SUCCESS ? run(instance, stream) : result;
}

static CUresult upload(CUgraphExec instance, CUstream handle, enum stream_flavour flavour)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	if (stream->participant)
		return capture_refuse(stream);
	return instance->footprint ? footprint_upload(instance->footprint, stream) : CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *instance, CUgraph graph,
	CUDA_GRAPH_INSTANTIATE_PARAMS *parameters, enum stream_flavour flavour)
{
	CUgraphExec made = NULL;
	CUresult result;

	REQUIRE(instance && parameters, CUDA_ERROR_INVALID_VALUE);
	result = cuGraphInstantiateWithFlags(&made, graph, parameters->flags);
	if (result == CUDA_SUCCESS && parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
		result = upload(made, parameters->hUploadStream, flavour);
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

CUresult cuGraphExecGetFlags(CUgraphExec instance, uint64_t *flags)
{
	REQUIRE_DRIVER();
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE && flags, CUDA_ERROR_INVALID_VALUE);
	*flags = instance->flags;
	return CUDA_SUCCESS;
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
	return launch(instance, stream, STREAM_LEGACY);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec instance, CUstream stream)
{
	return launch(instance, stream, STREAM_PER_THREAD);
}

CUresult cuGraphUpload(CUgraphExec instance, CUstream stream)
{
	return upload(instance, stream, STREAM_LEGACY);
}

CUresult cuGraphUpload_ptsz(CUgraphExec instance, CUstream stream)
{
	return upload(instance, stream, STREAM_PER_THREAD);
}
