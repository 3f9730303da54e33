/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that graphs allocate: when it is taken from the card, who shares it, when it is given
 * back.
 */
#include "made.h"

#include "expect.h"

static CUDA_MEM_ALLOC_NODE_PARAMS of_card(size_t bytes)
{
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = bytes};
}

/* An allocation node after `after` (null: at the root). */
static CUgraphNode allocate(CUgraph graph, CUgraphNode after, size_t bytes, CUdeviceptr *pointer)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = of_card(bytes);
	CUgraphNode node;

	EXPECT_EQUAL(cuGraphAddMemAllocNode(&node, graph, &after, after != NULL, &parameters),
		CUDA_SUCCESS);
	*pointer = parameters.dptr;
	return node;
}

static CUgraphNode release(CUgraph graph, CUgraphNode after, CUdeviceptr pointer)
{
	CUgraphNode node;

	EXPECT_EQUAL(
		cuGraphAddMemFreeNode(&node, graph, &after, after != NULL, pointer), CUDA_SUCCESS);
	return node;
}

/* An allocation and its end; returns that. */
static CUgraphNode borrow(CUgraph graph, CUgraphNode after, size_t bytes)
{
	CUdeviceptr pointer;
	CUgraphNode node = allocate(graph, after, bytes, &pointer);

	return release(graph, node, pointer);
}

static CUgraph graph_new(void)
{
	CUgraph graph;

	EXPECT_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	return graph;
}

static CUgraphExec instance_of(CUgraph graph, unsigned long long flags)
{
	CUgraphExec instance;

	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, graph, flags), CUDA_SUCCESS);
	return instance;
}

/* A graph that allocates and frees `bytes`, and its instance. */
static CUgraphExec temporary(size_t bytes)
{
	CUgraph graph = graph_new();
	CUgraphExec instance;

	borrow(graph, NULL, bytes);
	instance = instance_of(graph, 0);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	return instance;
}

static uint64_t figure(CUgraphMem_attribute attribute)
{
	uint64_t value;

	EXPECT_EQUAL(cuDeviceGetGraphMemAttribute(0, attribute, &value), CUDA_SUCCESS);
	return value;
}

static uint64_t used(void)
{
	return figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
}

static uint64_t reserved(void)
{
	return figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
}

static void trim(void)
{
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
}

static void memory_is_taken_at_the_first_launch_and_kept_until_a_trim(void)
{
	size_t before = free_bytes();
	CUgraphExec instance = temporary(10 * MIB);

	EXPECT_EQUAL(free_bytes(), before);
	for (int i = 0; i < 3; i++) {
		EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
		EXPECT_EQUAL(before - free_bytes(), 10 * MIB);
		EXPECT_EQUAL(reserved(), 10 * MIB);
	}
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(used(), 0);
	EXPECT_EQUAL(before - free_bytes(), 10 * MIB);
	trim();
	EXPECT_EQUAL(reserved(), 0);
	EXPECT_EQUAL(free_bytes(), before);
}

static void an_upload_takes_it_too(void)
{
	CUgraph graph = graph_new();
	size_t before = free_bytes();
	CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUgraphExec instance = temporary(4 * MIB);
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuGraphUpload(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	allocate(graph, NULL, 6 * MIB, &pointer);
	EXPECT_EQUAL(cuGraphInstantiateWithParams(&instance, graph, &parameters), CUDA_SUCCESS);
	EXPECT_EQUAL(parameters.result_out, 0);
	EXPECT_EQUAL(before - free_bytes(), 6 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE); /* not allocated yet */
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	trim();
	EXPECT_EQUAL(free_bytes(), before);
}

static void graphs_of_one_stream_share_what_those_of_two_do_not(void)
{
	CUgraphExec big = temporary(20 * MIB), small = temporary(8 * MIB);
	CUstream stream;

	EXPECT_EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch(big, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch(small, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(), 20 * MIB);
	EXPECT_EQUAL(cuGraphLaunch(small, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(), 28 * MIB);
	EXPECT_EQUAL(cuGraphLaunch(small, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(used(), 20 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(big), CUDA_SUCCESS);
	EXPECT_EQUAL(used(), 8 * MIB);
	trim();
	EXPECT_EQUAL(reserved(), 0);
	EXPECT_EQUAL(cuGraphLaunch(small, NULL), CUDA_SUCCESS); /* has its pages again */
	EXPECT_EQUAL(reserved(), 8 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(small), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
	trim();
}

static void what_is_freed_before_is_reused_and_only_then(void)
{
	CUgraph chain = graph_new(), wide = graph_new();
	CUgraphNode last = NULL;
	CUgraphExec instance;

	for (int i = 0; i < 4; i++) {
		last = borrow(chain, last, 16 * MIB);
		borrow(wide, NULL, 16 * MIB);
	}
	instance = instance_of(chain, 0);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(), 16 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	instance = instance_of(wide, 0);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(), 64 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(chain), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(wide), CUDA_SUCCESS);
	trim();
}

static void what_a_graph_leaves_allocated_must_be_freed_before_it_runs_again(void)
{
	size_t before = free_bytes();
	CUgraph graph = graph_new();
	CUgraphExec instance;
	unsigned char byte = 0;
	CUdeviceptr pointer;

	allocate(graph, NULL, 3 * MIB, &pointer);
	EXPECT_EQUAL(cuMemsetD8_v2(pointer, 7, 1), CUDA_ERROR_INVALID_VALUE);
	instance = instance_of(graph, 0);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD8_v2(pointer, 7, 3 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoH_v2(&byte, pointer + 3 * MIB - 1, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(byte, 7);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_ERROR_INVALID_VALUE);
	trim();
	EXPECT_EQUAL(reserved(), 4 * MIB); /* live */
	EXPECT_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	/* Its graph and instance may go first. */
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(used(), 4 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
	trim();
	EXPECT_EQUAL(free_bytes(), before);
}

static void auto_free_lets_it_run_again(void)
{
	CUgraph graph = graph_new();
	CUgraphExec instance;
	CUdeviceptr pointer;

	allocate(graph, NULL, 2 * MIB, &pointer);
	instance = instance_of(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	for (int i = 0; i < 3; i++)
		EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(), 2 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	trim();
	EXPECT_EQUAL(reserved(), 0);
}

static void another_graph_can_free_it_once(void)
{
	CUgraph one = graph_new(), other = graph_new();
	CUgraphExec allocating, freeing;
	CUgraphNode node;
	CUdeviceptr pointer, freed;

	allocate(one, NULL, 2 * MIB, &pointer);
	node = release(other, NULL, pointer);
	EXPECT_EQUAL(cuGraphMemFreeNodeGetParams(node, &freed), CUDA_SUCCESS);
	EXPECT_EQUAL(freed, pointer);
	EXPECT_EQUAL(
		cuGraphAddMemFreeNode(&node, other, NULL, 0, pointer), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuGraphAddMemFreeNode(&node, one, NULL, 0, pointer), CUDA_ERROR_INVALID_VALUE);
	allocating = instance_of(one, 0);
	freeing = instance_of(other, 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQUAL(cuGraphLaunch(allocating, NULL), CUDA_SUCCESS);
		EXPECT_EQUAL(cuGraphLaunch(freeing, NULL), CUDA_SUCCESS);
	}
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuGraphDestroy(one), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecDestroy(allocating), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(other), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecDestroy(freeing), CUDA_SUCCESS);
	trim();
	EXPECT_EQUAL(reserved(), 0);
}

static void over_the_card_is_out_of_memory_and_leaves_no_trace(void)
{
	size_t before = free_bytes();
	CUgraphExec instance = temporary(before + 1);

	EXPECT_EQUAL(cuGraphUpload(instance, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(used(), 0);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	instance = temporary(before);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), 0);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	trim();
	EXPECT_EQUAL(free_bytes(), before);
}

static void a_graph_that_allocates_is_one_of_a_kind(void)
{
	CUgraph graph = graph_new(), parent = graph_new(), copy;
	CUgraphNodeParams child = {.type = CU_GRAPH_NODE_TYPE_GRAPH,
		.graph = {graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
	CUgraphExec instance, second;
	CUgraphNode node, last;

	last = borrow(graph, NULL, 2 * MIB);
	instance = instance_of(graph, 0);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphClone(&copy, graph), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_EQUAL(cuGraphDestroyNode(last), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_EQUAL(
		cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_EQUAL(cuGraphAddNode(&node, parent, NULL, 0, &child), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE); /* its parent's now */
	instance = instance_of(parent, 0);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(used(), 2 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(parent), CUDA_SUCCESS);
	trim();
}

static void nodes_tell_what_they_allocate(void)
{
	CUgraphNodeParams parameters = {
		.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = of_card(5 * MIB)};
	CUDA_MEM_ALLOC_NODE_PARAMS told;
	CUgraph graph = graph_new();
	CUgraphNode node, nodes[4];
	CUgraphNodeType type;
	size_t count = 4;

	EXPECT_EQUAL(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &parameters), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 1);
	EXPECT_EQUAL(cuGraphNodeGetType(nodes[0], &type), CUDA_SUCCESS);
	EXPECT_EQUAL(type, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	EXPECT_EQUAL(cuGraphMemAllocNodeGetParams(nodes[0], &told), CUDA_SUCCESS);
	EXPECT_EQUAL(told.bytesize, 5 * MIB);
	EXPECT_EQUAL(told.dptr, parameters.alloc.dptr);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
}

static void high_water_marks_begin_anew_when_set_to_zero(void)
{
	uint64_t zero = 0, one = 1;
	CUgraphExec instance = temporary(12 * MIB);

	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	trim();
	EXPECT(figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= 12 * MIB);
	EXPECT_EQUAL(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &one),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero),
		CUDA_SUCCESS);
	EXPECT_EQUAL(figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 0);
}

static void a_destroyed_context_gives_its_graphs_memory_back(void)
{
	size_t before = free_bytes();
	CUgraph graph = graph_new();
	CUgraphExec instance;
	CUcontext context;
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
	allocate(graph, NULL, 2 * MIB, &pointer);
	instance = instance_of(graph, 0);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
}

void test_graph_memory(void)
{
	memory_is_taken_at_the_first_launch_and_kept_until_a_trim();
	an_upload_takes_it_too();
	graphs_of_one_stream_share_what_those_of_two_do_not();
	what_is_freed_before_is_reused_and_only_then();
	what_a_graph_leaves_allocated_must_be_freed_before_it_runs_again();
	auto_free_lets_it_run_again();
	another_graph_can_free_it_once();
	over_the_card_is_out_of_memory_and_leaves_no_trace();
	a_graph_that_allocates_is_one_of_a_kind();
	nodes_tell_what_they_allocate();
	high_water_marks_begin_anew_when_set_to_zero();
	a_destroyed_context_gives_its_graphs_memory_back();
}
