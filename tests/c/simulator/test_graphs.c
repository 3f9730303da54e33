/* SPDX-License-Identifier: Apache-2.0
 *
 * What the nodes of graphs do when an instance is launched, and what they tell.
 */
#include "made.h"

#include "expect.h"

static void note(void *noted)
{
	++*(int *)noted;
}

static void memory_is_set_copied_and_the_host_called_in_order(void)
{
	unsigned char in[1000] = {0};
	CUdeviceptr one, other;
	CUcontext context;
	CUgraph graph;
	CUgraphExec instance;
	CUgraphNode set, copied, called, out;
	int noted = 0;
	const CUDA_HOST_NODE_PARAMS host = {note, &noted};
	CUDA_MEMSET_NODE_PARAMS fill = {
		.value = 0x5a, .elementSize = 1, .width = 1000, .height = 1};
	CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.WidthInBytes = 1000,
		.Height = 1,
		.Depth = 1};

	EXPECT_EQUAL(cuCtxGetCurrent(&context), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&one, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&other, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	fill.dst = one;
	copy.srcDevice = one;
	copy.dstDevice = other;
	EXPECT_EQUAL(cuGraphAddMemsetNode(&set, graph, NULL, 0, &fill, context), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddMemcpyNode(&copied, graph, &set, 1, &copy, context), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddHostNode(&called, graph, &copied, 1, &host), CUDA_SUCCESS);
	copy.srcDevice = other;
	copy.dstMemoryType = CU_MEMORYTYPE_HOST;
	copy.dstHost = in;
	EXPECT_EQUAL(cuGraphAddMemcpyNode(&out, graph, &called, 1, &copy, context), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(in[0], 0);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch_ptsz(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(in[0], 0x5a);
	EXPECT_EQUAL(in[999], 0x5a);
	EXPECT_EQUAL(noted, 2);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(one), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(other), CUDA_SUCCESS);
}

static void a_child_graph_is_copied_as_it_was(void)
{
	int noted = 0;
	const CUDA_HOST_NODE_PARAMS host = {note, &noted};
	CUgraph parent, child, clone, inner;
	CUgraphNode node, hosted;
	CUgraphExec instance;
	CUgraphNodeType type;
	size_t count = 0;

	EXPECT_EQUAL(cuGraphCreate(&parent, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphCreate(&child, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddHostNode(&hosted, child, NULL, 0, &host), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddChildGraphNode(&node, parent, NULL, 0, child), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddHostNode(&hosted, child, &hosted, 1, &host), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(child), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphChildGraphNodeGetGraph(node, &inner), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphGetNodes(inner, NULL, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 1);
	EXPECT_EQUAL(cuGraphNodeGetType(node, &type), CUDA_SUCCESS);
	EXPECT_EQUAL(type, CU_GRAPH_NODE_TYPE_GRAPH);
	EXPECT_EQUAL(cuGraphClone(&clone, parent), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(parent), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, clone, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch(instance, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(noted, 1);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(clone), CUDA_SUCCESS);
}

static void nodes_know_what_they_depend_on(void)
{
	CUgraphNode first, second, last, both[2], told[3];
	CUgraph graph, other;
	size_t count = 3;

	EXPECT_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphCreate(&other, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddEmptyNode(&first, graph, NULL, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddEmptyNode(&second, graph, NULL, 0), CUDA_SUCCESS);
	both[0] = first;
	both[1] = second;
	EXPECT_EQUAL(cuGraphAddEmptyNode(&last, graph, both, 2), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphAddEmptyNode(&told[0], other, both, 2), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuGraphNodeGetDependencies(last, told, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 2);
	EXPECT(told[0] == first && told[1] == second && told[2] == NULL);
	EXPECT_EQUAL(cuGraphDestroyNode(first), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphNodeGetDependencies(last, NULL, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 1);
	EXPECT_EQUAL(cuGraphGetRootNodes(graph, NULL, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 1);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(other), CUDA_SUCCESS);
}

void test_graphs(void)
{
	memory_is_set_copied_and_the_host_called_in_order();
	a_child_graph_is_copied_as_it_was();
	nodes_know_what_they_depend_on();
}
