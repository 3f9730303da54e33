/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: the memory that their nodes allocate.
 */
#include "contract.h"

static CUgraph graph_new(void)
{
	CUgraph graph;

	OK(cuGraphCreate(&graph, 0));
	return graph;
}

static CUgraphExec instance_of(CUgraph graph, unsigned long long flags)
{
	CUgraphExec instance;

	OK(cuGraphInstantiateWithFlags(&instance, graph, flags));
	return instance;
}

static CUDA_MEM_ALLOC_NODE_PARAMS of_card(size_t bytes)
{
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = bytes};
}

/* An allocation node at the root. */
static CUgraphNode allocate(CUgraph graph, size_t bytes, CUdeviceptr *pointer)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = of_card(bytes);
	CUgraphNode node;

	OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
	*pointer = parameters.dptr;
	return node;
}

/* An allocation and its end. */
static void borrow(CUgraph graph, size_t bytes)
{
	CUdeviceptr pointer;
	CUgraphNode node = allocate(graph, bytes, &pointer), end;

	OK(cuGraphAddMemFreeNode(&end, graph, &node, 1, pointer));
}

/* An instance of a graph that allocates and frees `bytes`. */
static CUgraphExec temporary(size_t bytes)
{
	CUgraph graph = graph_new();

	borrow(graph, bytes);
	CUgraphExec instance = instance_of(graph, 0);
	OK(cuGraphDestroy(graph));
	return instance;
}

static uint64_t figure(CUgraphMem_attribute name)
{
	uint64_t value;

	OK(cuDeviceGetGraphMemAttribute(0, name, &value));
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
	OK(cuCtxSynchronize());
	OK(cuDeviceGraphMemTrim(0));
}

void a_graph_takes_memory_at_its_first_launch_until_a_trim(void)
{
	begin();
	const size_t before = free_bytes(), size = 32 * MIB;
	CUgraphExec instance = temporary(size);

	UNCHANGED(before);
	for (int i = 0; i < 3; i++) {
		OK(cuGraphLaunch(instance, NULL));
		CHECK(reserved() >= size && reserved() < 2 * size);
		CHECK(before - free_bytes() >= size && before - free_bytes() < 2 * size);
	}
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(instance));
	CHECK(before - free_bytes() >= size);
	trim();
	EQUAL(reserved(), 0);
	UNCHANGED(before);
}

void an_upload_takes_the_memory_of_a_graph(void)
{
	begin();
	const size_t before = free_bytes(), size = 32 * MIB;
	CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUgraphExec instance = temporary(size);
	CUgraph graph = graph_new();
	CUdeviceptr pointer;

	OK(cuGraphUpload(instance, NULL));
	CHECK(before - free_bytes() >= size);
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(instance));
	trim();
	allocate(graph, size, &pointer);
	OK(cuGraphInstantiateWithParams(&instance, graph, &parameters));
	EQUAL(parameters.result_out, 0);
	CHECK(before - free_bytes() >= size);
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(instance));
	OK(cuGraphDestroy(graph));
	trim();
	UNCHANGED(before);
}

void graphs_of_one_stream_share_memory(void)
{
	begin();
	CUgraphExec big = temporary(64 * MIB), small = temporary(32 * MIB);
	CUstream stream = stream_new();

	OK(cuGraphLaunch(big, NULL));
	OK(cuGraphLaunch(small, NULL));
	CHECK(reserved() < 96 * MIB);
	OK(cuGraphLaunch(small, stream)); /* a driver may give it the same memory or more */
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(big));
	trim();
	OK(cuGraphLaunch(small, NULL)); /* has its pages again */
	CHECK(reserved() >= 32 * MIB);
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(small));
	OK(cuStreamDestroy_v2(stream));
	trim();
	EQUAL(reserved(), 0);
}

void what_a_graph_leaves_allocated_must_be_freed_before_it_runs_again(void)
{
	begin();
	const size_t before = free_bytes(), size = 32 * MIB;
	CUgraph graph = graph_new();
	unsigned char byte = 0;
	CUdeviceptr pointer;

	allocate(graph, size, &pointer);
	CUgraphExec instance = instance_of(graph, 0);
	OK(cuGraphLaunch(instance, NULL));
	OK(cuMemsetD8_v2(pointer, 7, size));
	OK(cuMemcpyDtoH_v2(&byte, pointer + size - 1, 1));
	EQUAL(byte, 7);
	IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(instance, NULL));
	trim();
	CHECK(reserved() >= size && used() >= size); /* live */
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuGraphLaunch(instance, NULL));
	/* Its graph and instance may go first. */
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(instance));
	OK(cuGraphDestroy(graph));
	CHECK(used() >= size);
	OK(cuMemFree_v2(pointer));
	FAILS(cuMemFree_v2(pointer));
	trim();
	UNCHANGED(before);
}

void a_graph_over_the_card_is_out_of_memory_until_there_is_room(void)
{
	begin();
	/* What a card takes at the refused upload, and keeps, is in its reserve. */
	const size_t before = free_bytes() + reserved(), size = 256 * MIB;
	CUgraphExec instance = temporary(size);

	fill(size / 2);
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuGraphUpload(instance, NULL));
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(instance, NULL));
	EQUAL(used(), 0);
	empty();
	OK(cuGraphLaunch(instance, NULL));
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(instance));
	trim();
	if (settled)
		EQUAL(free_bytes() + reserved(), before);
}

void a_child_graph_takes_memory_with_its_parent(void)
{
	CUgraphNode node;

	begin();
	CUgraph graph = graph_new(), parent = graph_new();
	CUgraphNodeParams child = {.type = CU_GRAPH_NODE_TYPE_GRAPH,
		.graph = {graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
	borrow(graph, 32 * MIB);
	OK(cuGraphAddNode(&node, parent, NULL, 0, &child));
	CUgraphExec instance = instance_of(parent, 0);
	OK(cuGraphLaunch(instance, NULL));
	CHECK(reserved() >= 32 * MIB);
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(instance));
	OK(cuGraphDestroy(parent));
	trim();
	EQUAL(reserved(), 0);
}

void a_node_knows_what_it_allocates(void)
{
	CUgraphNodeParams parameters = {
		.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = of_card(5 * MIB)};
	CUDA_MEM_ALLOC_NODE_PARAMS told;
	CUgraphNodeType type;
	CUgraphNode node;

	begin();
	CUgraph graph = graph_new();
	OK(cuGraphAddNode(&node, graph, NULL, 0, &parameters));
	OK(cuGraphNodeGetType(node, &type));
	EQUAL(type, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	OK(cuGraphMemAllocNodeGetParams(node, &told));
	EQUAL(told.bytesize, 5 * MIB);
	EQUAL(told.dptr, parameters.alloc.dptr);
}
