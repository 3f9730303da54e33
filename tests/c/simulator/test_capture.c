/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: what becomes of calls on the streams that take part, and what is refused.
 */
#include "made.h"

#include "expect.h"

#include <pthread.h>

static CUstream stream_new(void)
{
	CUstream stream;

	EXPECT_EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	return stream;
}

static CUevent event_new(void)
{
	CUevent event;

	EXPECT_EQUAL(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	return event;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
	CUstreamCaptureStatus status;

	EXPECT_EQUAL(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
	return status;
}

static void begin(CUstream stream)
{
	EXPECT_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
}

static CUgraph end(CUstream stream)
{
	CUgraph graph;

	EXPECT_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
	EXPECT_EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
	return graph;
}

static void end_fails(CUstream stream, CUresult why)
{
	CUgraph graph = (CUgraph)(void *)stream;

	EXPECT_EQUAL(cuStreamEndCapture(stream, &graph), why);
	EXPECT(graph == NULL);
	EXPECT_EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

static CUgraphNodeType type_of(CUgraphNode node)
{
	CUgraphNodeType type;

	EXPECT_EQUAL(cuGraphNodeGetType(node, &type), CUDA_SUCCESS);
	return type;
}

static void note(void *noted)
{
	++*(int *)noted;
}

static void calls_become_nodes_that_run_when_the_graph_does(void)
{
	const CUgraphNodeType wanted[] = {CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMSET,
		CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_HOST};
	CUstream stream = stream_new();
	CUgraphNode nodes[5];
	unsigned int word = 0;
	size_t count = 5, dependencies;
	CUgraphExec instance;
	CUdeviceptr pointer;
	CUgraph graph;
	int noted = 0;

	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 4096), CUDA_SUCCESS);
	begin(stream);
	EXPECT_EQUAL(launch_ns(stream, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD32Async(pointer, 0xabcd, 1024, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoHAsync_v2(&word, pointer + 4092, 4, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLaunchHostFunc(stream, note, &noted), CUDA_SUCCESS);
	graph = end(stream);
	EXPECT_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 4);
	for (size_t i = 0; i < 4; i++) {
		EXPECT_EQUAL(type_of(nodes[i]), wanted[i]);
		EXPECT_EQUAL(
			cuGraphNodeGetDependencies(nodes[i], NULL, &dependencies), CUDA_SUCCESS);
		EXPECT_EQUAL(dependencies, i > 0);
	}
	EXPECT_EQUAL(noted + (int)word, 0);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch(instance, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
	EXPECT_EQUAL(word, 0xabcd);
	EXPECT_EQUAL(noted, 1);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void an_allocation_of_a_stream_is_one_of_the_graph(void)
{
	size_t before = free_bytes();
	CUstream stream = stream_new();
	CUgraphExec instance;
	CUgraphNode nodes[3];
	CUdeviceptr pointer;
	size_t count = 3;
	CUgraph graph;

	begin(stream);
	EXPECT_EQUAL(cuMemAllocAsync(&pointer, 12 * MIB, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD8Async(pointer, 1, 12 * MIB, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	graph = end(stream);
	EXPECT_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(type_of(nodes[0]), CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	EXPECT_EQUAL(type_of(nodes[2]), CU_GRAPH_NODE_TYPE_MEM_FREE);
	EXPECT_EQUAL(cuGraphInstantiateWithFlags(&instance, graph, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphLaunch(instance, stream), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 12 * MIB);
	EXPECT_EQUAL(cuGraphExecDestroy(instance), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static void a_stream_that_waits_takes_part_and_must_come_back(void)
{
	CUstream first = stream_new(), second = stream_new();
	CUevent fork = event_new(), join = event_new(), outside = event_new();
	CUgraphNode nodes[3];
	size_t count = 3;
	CUgraph graph;

	begin(first);
	EXPECT_EQUAL(launch_ns(first, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(fork, first), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventQuery(fork), CUDA_ERROR_CAPTURED_EVENT);
	EXPECT_EQUAL(cuStreamWaitEvent(second, fork, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(status_of(second), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	EXPECT_EQUAL(launch_ns(second, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventRecord(join, second), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamWaitEvent(first, join, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(launch_ns(first, 1000), CUDA_SUCCESS);
	graph = end(first);
	EXPECT_EQUAL(status_of(second), CU_STREAM_CAPTURE_STATUS_NONE);
	EXPECT_EQUAL(cuGraphGetNodes(graph, nodes, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphNodeGetDependencies(nodes[2], NULL, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 2);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);

	begin(first);
	EXPECT_EQUAL(cuEventRecord(fork, first), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamWaitEvent(second, fork, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(launch_ns(second, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamEndCapture(second, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	end_fails(first, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	EXPECT_EQUAL(cuStreamWaitEvent(second, fork, 0), CUDA_ERROR_CAPTURED_EVENT);

	EXPECT_EQUAL(cuEventRecord(outside, second), CUDA_SUCCESS);
	begin(first);
	EXPECT_EQUAL(cuStreamWaitEvent(first, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	end_fails(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT_EQUAL(cuEventDestroy_v2(fork), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventDestroy_v2(join), CUDA_SUCCESS);
	EXPECT_EQUAL(cuEventDestroy_v2(outside), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(first), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(second), CUDA_SUCCESS);
}

static void what_cannot_be_captured_is_refused_and_spoils_the_capture(void)
{
	CUstream stream = stream_new(), blocking;
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstreamCaptureStatus status;
	CUdeviceptr pointer;
	CUgraph graph;

	begin(stream);
	EXPECT_EQUAL(cuStreamBeginCapture(stream), CUDA_ERROR_ILLEGAL_STATE);
	EXPECT_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT_EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	EXPECT_EQUAL(launch_ns(stream, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);

	begin(stream);
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	begin(stream);
	EXPECT_EQUAL(cuThreadExchangeStreamCaptureMode(&relaxed), CUDA_SUCCESS);
	EXPECT_EQUAL(relaxed, CU_STREAM_CAPTURE_MODE_GLOBAL);
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuThreadExchangeStreamCaptureMode(&relaxed), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGraphDestroy(end(stream)), CUDA_SUCCESS);

	EXPECT_EQUAL(cuStreamBeginCapture(NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT_EQUAL(cuStreamCreate(&blocking, 0), CUDA_SUCCESS);
	begin(blocking);
	EXPECT_EQUAL(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	EXPECT_EQUAL(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	EXPECT_EQUAL(launch_ns(NULL, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	end_fails(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT_EQUAL(cuStreamDestroy_v2(blocking), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static CUcontext shared_context;

static void *end_elsewhere(void *stream)
{
	CUdeviceptr pointer;
	CUgraph graph;

	EXPECT_EQUAL(cuCtxSetCurrent(shared_context), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	return NULL;
}

static void a_capture_of_one_thread_leaves_others_alone_and_is_its_to_end(void)
{
	CUstream stream = stream_new();
	pthread_t thread;

	EXPECT_EQUAL(cuCtxGetCurrent(&shared_context), CUDA_SUCCESS);
	EXPECT_EQUAL(
		cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
	EXPECT_EQUAL(pthread_create(&thread, NULL, end_elsewhere, stream), 0);
	pthread_join(thread, NULL);
	EXPECT_EQUAL(cuGraphDestroy(end(stream)), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static void the_program_may_add_nodes_of_its_own(void)
{
	CUstream stream = stream_new();
	const CUgraphNode *nodes;
	CUstreamCaptureStatus status;
	uint64_t id = 0;
	CUgraph graph, ended;
	CUgraphNode node;
	size_t count;

	begin(stream);
	EXPECT_EQUAL(launch_ns(stream, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &nodes, &count),
		CUDA_SUCCESS);
	EXPECT(id > 0 && count == 1);
	EXPECT_EQUAL(cuGraphAddEmptyNode(&node, graph, nodes, count), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamUpdateCaptureDependencies(stream, &node, 1, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(launch_ns(stream, 1000), CUDA_SUCCESS);
	ended = end(stream);
	EXPECT(ended == graph);
	EXPECT_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 3);
	EXPECT_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

void test_capture(void)
{
	calls_become_nodes_that_run_when_the_graph_does();
	an_allocation_of_a_stream_is_one_of_the_graph();
	a_stream_that_waits_takes_part_and_must_come_back();
	what_cannot_be_captured_is_refused_and_spoils_the_capture();
	a_capture_of_one_thread_leaves_others_alone_and_is_its_to_end();
	the_program_may_add_nodes_of_its_own();
}
