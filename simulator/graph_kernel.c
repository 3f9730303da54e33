/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel nodes. The node copies its parameters: the caller may change its own, and queries return
 * the node's.
 */
#include "cuda_work.h"
#include "graph.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

/* The node's copy; kernelParams points to `values`, to the bytes behind it. */
struct kernel_call {
	CUDA_KERNEL_NODE_PARAMS parameters;
	void *values[];
};

void kernel_call_free(struct kernel_call *call)
{
	free(call);
}

/* The location of a kernel parameter's value, in either form. */
static const unsigned char *value_of(
	const CUDA_KERNEL_NODE_PARAMS *parameters, const struct parameter *parameter, size_t index)
{
	if (parameters->kernelParams)
		return parameters->kernelParams[index];
	for (void **extra = parameters->extra; extra && extra[0]; extra += 2) {
		if (extra[0] == LAUNCH_BUFFER)
			return (const unsigned char *)extra[1] + parameter->offset;
	}
	return NULL;
}

static struct kernel_call *call_new(const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function)
{
	const struct kernel *kernel = function->kernel;
	size_t bytes = 0;

	for (size_t i = 0; i < kernel->parameter_count; i++)
		bytes += kernel->parameters[i].bytes;
	struct kernel_call *call = calloc(
		1, sizeof(*call) + kernel->parameter_count * sizeof(call->values[0]) + bytes);
	if (!call)
		return NULL;
	unsigned char *room = (unsigned char *)(call->values + kernel->parameter_count);
	for (size_t i = 0; i < kernel->parameter_count; i++) {
		const unsigned char *value = value_of(parameters, &kernel->parameters[i], i);

		if (value)
			memcpy(room, value, kernel->parameters[i].bytes);
		call->values[i] = room;
		room += kernel->parameters[i].bytes;
	}
	call->parameters = *parameters;
	call->parameters.func = function;
	call->parameters.kernelParams = kernel->parameter_count ? call->values : NULL;
	call->parameters.extra = NULL;
	return call;
}

CUresult kernel_call_copy(CUgraphNode copy, CUgraphNode original)
{
	if (!original->call)
		return CUDA_SUCCESS;
	copy->call = call_new(&original->call->parameters, original->call->parameters.func);
	return copy->call ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult duration_of(
	const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function, uint64_t *duration_ns)
{
	const struct grid grid = {parameters->gridDimX, parameters->gridDimY, parameters->gridDimZ,
		parameters->blockDimX, parameters->blockDimY, parameters->blockDimZ};

	REQUIRE_CONTEXT(context);
	return launch_duration(
		function, &grid, parameters->kernelParams, parameters->extra, context, duration_ns);
}

static CUresult set_kernel(
	CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function)
{
	uint64_t duration_ns;
	CUresult result = duration_of(parameters, function, &duration_ns);

	if (result != CUDA_SUCCESS)
		return result;
	struct kernel_call *call = call_new(parameters, function);
	REQUIRE(call, CUDA_ERROR_OUT_OF_MEMORY);
	kernel_call_free(node->call);
	node->call = call;
	node->content.duration_ns = duration_ns;
	return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function)
{
	uint64_t duration_ns;
	CUresult result = duration_of(parameters, function, &duration_ns);

	if (result == CUDA_SUCCESS)
		result = node_add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL);
	if (result != CUDA_SUCCESS)
		return result;
	result = set_kernel(*node, parameters, function);
	if (result != CUDA_SUCCESS)
		node_withdraw(*node);
	return result;
}

/* The first version's parameters end before the kernel handle. */
static CUDA_KERNEL_NODE_PARAMS first_version(const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	CUDA_KERNEL_NODE_PARAMS whole = {0};

	memcpy(&whole, parameters, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return whole;
}

static CUfunction function_of(const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	return parameters->func ? parameters->func : (CUfunction)(void *)parameters->kern;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	const CUDA_KERNEL_NODE_PARAMS whole = first_version(parameters);
	return add_kernel(node, graph, dependencies, count, &whole, whole.func);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
	size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	return add_kernel(node, graph, dependencies, count, parameters, function_of(parameters));
}

static bool is_kernel(CUgraphNode node)
{
	return node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(is_kernel(node) && parameters, CUDA_ERROR_INVALID_VALUE);
	const CUDA_KERNEL_NODE_PARAMS whole = first_version(parameters);
	return set_kernel(node, &whole, whole.func);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(is_kernel(node) && parameters, CUDA_ERROR_INVALID_VALUE);
	return set_kernel(node, parameters, function_of(parameters));
}

/* For a captured node, only the duration is known. */
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE_DRIVER();
	REQUIRE(is_kernel(node) && parameters, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(node->call, CUDA_ERROR_NOT_SUPPORTED);
	memcpy(parameters, &node->call->parameters, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
	CUresult result = cuGraphKernelNodeGetParams(node, parameters);

	if (result == CUDA_SUCCESS)
		*parameters = node->call->parameters;
	return result;
}

/* Only the instance's step changes, not its original node. */
static CUresult set_step(CUgraphExec instance, CUgraphNode node,
	const CUDA_KERNEL_NODE_PARAMS *parameters, CUfunction function)
{
	uint64_t duration_ns;
	CUresult result;

	REQUIRE(instance && instance->kind == OBJECT_INSTANCE, CUDA_ERROR_INVALID_VALUE);
	result = duration_of(parameters, function, &duration_ns);
	if (result != CUDA_SUCCESS)
		return result;
	for (size_t i = 0; i < instance->step_count; i++) {
		struct step *step = &instance->steps[i];

		if (step->node == node && step->type == CU_GRAPH_NODE_TYPE_KERNEL) {
			step->content.duration_ns = duration_ns;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams(
	CUgraphExec instance, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	const CUDA_KERNEL_NODE_PARAMS whole = first_version(parameters);
	return set_step(instance, node, &whole, whole.func);
}

CUresult cuGraphExecKernelNodeSetParams_v2(
	CUgraphExec instance, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	REQUIRE(parameters, CUDA_ERROR_INVALID_VALUE);
	return set_step(instance, node, parameters, function_of(parameters));
}
