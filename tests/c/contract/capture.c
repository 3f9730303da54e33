/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: what becomes of calls on the streams that take part, and what is refused.
 */
#include "contract.h"

#include <pthread.h>

static CUstreamCaptureStatus status_of(CUstream stream)
{
	CUstreamCaptureStatus status;

	OK(cuStreamIsCapturing(stream, &status));
	return status;
}

static void start(CUstream stream)
{
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph end(CUstream stream)
{
	CUgraph graph;

	OK(cuStreamEndCapture(stream, &graph));
	EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
	return graph;
}

static void end_fails(CUstream stream, CUresult why)
{
	CUgraph graph = NULL;

	IS(why, cuStreamEndCapture(stream, &graph));
	CHECK(!graph);
	EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

static CUgraphNodeType type_of(CUgraphNode node)
{
	CUgraphNodeType type;

	OK(cuGraphNodeGetType(node, &type));
	return type;
}

void a_captured_allocation_is_one_of_the_graph(void)
{
	const size_t size = 32 * MIB;
	CUgraphExec instance;
	CUgraphNode nodes[3];
	CUdeviceptr pointer;
	size_t count = 3;

	begin();
	const size_t before = free_bytes();
	CUstream stream = stream_new();
	start(stream);
	OK(cuMemAllocAsync(&pointer, size, stream));
	OK(cuMemsetD8Async(pointer, 1, size, stream));
	OK(cuMemFreeAsync(pointer, stream));
	CUgraph graph = end(stream);
	CHECK(before - free_bytes() < size);
	OK(cuGraphGetNodes(graph, nodes, &count));
	EQUAL(type_of(nodes[0]), CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	EQUAL(type_of(nodes[2]), CU_GRAPH_NODE_TYPE_MEM_FREE);
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
	OK(cuGraphLaunch(instance, stream));
	CHECK(before - free_bytes() >= size);
	OK(cuStreamSynchronize(stream));
	OK(cuGraphExecDestroy(instance));
	OK(cuGraphDestroy(graph));
	OK(cuDeviceGraphMemTrim(0));
	OK(cuStreamDestroy_v2(stream));
	UNCHANGED(before);
}

void a_stream_that_waits_takes_part(void)
{
	size_t count = 0;
	CUgraph graph;

	begin();
	CUstream first = stream_new(), second = stream_new();
	CUevent fork = event_new(CU_EVENT_DISABLE_TIMING);
	CUevent join = event_new(CU_EVENT_DISABLE_TIMING);
	OK(launch_ns(first, 1000));
	start(first);
	OK(launch_ns(first, 1000));
	OK(cuEventRecord(fork, first));
	OK(cuStreamWaitEvent(second, fork, 0));
	EQUAL(status_of(second), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(launch_ns(second, 1000));
	OK(cuEventRecord(join, second));
	OK(cuStreamWaitEvent(first, join, 0));
	OK(launch_ns(first, 1000));
	graph = end(first);
	EQUAL(status_of(second), CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuGraphGetNodes(graph, NULL, &count));
	EQUAL(count, 3);
	OK(cuGraphDestroy(graph));
}

void who_asks_a_captured_event_spoils_the_capture(void)
{
	begin();
	CUstream first = stream_new(), second = stream_new();
	CUevent event = event_new(CU_EVENT_DISABLE_TIMING);
	OK(launch_ns(first, 1000)); /* the kernel is loaded */
	OK(cuCtxSynchronize());
	for (int synchronize = 0; synchronize < 2; synchronize++) {
		start(first);
		OK(launch_ns(first, 1000));
		OK(cuEventRecord(event, first));
		IS(CUDA_ERROR_CAPTURED_EVENT,
			synchronize ? cuEventSynchronize(event) : cuEventQuery(event));
		EQUAL(status_of(first), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
		IS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(second, event, 0));
		end_fails(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	}
}

void what_cannot_be_captured_is_refused_and_spoils_the_capture(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr pointer;
	CUgraph graph;

	begin();
	CUstream stream = stream_new();
	OK(launch_ns(stream, 1000));
	OK(cuStreamSynchronize(stream));
	start(stream);
	IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
	EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch_ns(stream, 1));
	end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	FAILS(cuStreamEndCapture(stream, &graph));

	start(stream);
	IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&pointer, 1));
	end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

	start(stream);
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuMemFree_v2(allocated(1)));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuGraphDestroy(end(stream)));
}

/* What another thread asks while this one captures. */
struct asked {
	CUcontext context;
	CUstreamCaptureMode mode;
	CUstream captured; /* null: not to be ended */
	CUevent event;	   /* null: not to be asked */
	CUresult result;
};

static void *ask(void *argument)
{
	struct asked *asked = argument;
	CUgraph graph;

	OK(cuCtxSetCurrent(asked->context));
	OK(cuThreadExchangeStreamCaptureMode(&asked->mode));
	asked->result = asked->captured ? cuStreamEndCapture(asked->captured, &graph)
					: cuEventQuery(asked->event);
	return NULL;
}

static CUresult asked_by_another_thread(struct asked asked)
{
	pthread_t thread;

	EQUAL(pthread_create(&thread, NULL, ask, &asked), 0);
	EQUAL(pthread_join(thread, NULL), 0);
	return asked.result;
}

void other_threads_are_bound_by_the_mode_of_a_capture(void)
{
	CUcontext context = begin();
	CUstream stream = stream_new(), other = stream_new();
	CUevent event = event_new(0);
	struct asked asked = {context, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, event, CUDA_SUCCESS};

	OK(cuEventRecord(event, other));
	OK(cuCtxSynchronize());
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(asked_by_another_thread(asked));
	OK(cuGraphDestroy(end(stream)));

	asked.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	start(stream);
	OK(asked_by_another_thread(asked));
	OK(cuGraphDestroy(end(stream)));

	asked.mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	start(stream);
	IS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, asked_by_another_thread(asked));
	end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void another_thread_ends_a_capture_without_a_graph(void)
{
	CUcontext context = begin();
	CUstream stream = stream_new();
	CUgraph graph;

	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	IS(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
		asked_by_another_thread((struct asked){
			context, CU_STREAM_CAPTURE_MODE_GLOBAL, stream, NULL, CUDA_SUCCESS}));
	EQUAL(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
	IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
}
