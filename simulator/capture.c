/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: calls on a stream become nodes of a graph, in the order in which they are made. A
 * stream takes part from cuStreamBeginCapture on, or from when it waits for an event that was
 * recorded in a capture, until the capture ends. Rules and errors: the driver API's "Stream
 * Management", and "CUDA Graphs" in the programming guide.
 */
#include "graph.h"

#include <stdlib.h>

struct capture {
	unsigned long long id;
	CUgraph graph;
	bool own_graph; /* created for it, not by the program */
	CUstreamCaptureMode mode;
	const void *thread;
	CUstream origin;
	bool invalidated;
	struct capture *next;
};

static _Atomic unsigned int captures_open;
static struct latch latch; /* before all others */
static struct capture *captures;
static unsigned long long last_id;

/* How strict a thread is about calls that are not part of a capture. The address identifies the
 * thread. */
static _Thread_local CUstreamCaptureMode thread_mode __attribute__((tls_model("initial-exec")));

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = thread_mode;

	REQUIRE_DRIVER();
	REQUIRE(mode && (unsigned int)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED,
		CUDA_ERROR_INVALID_VALUE);
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static bool forbids(const struct capture *capture)
{
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (capture->thread == &thread_mode)
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_forbids(void)
{
	CUresult result = CUDA_SUCCESS;

	if (atomic_load_explicit(&captures_open, memory_order_relaxed) == 0)
		return CUDA_SUCCESS;
	latch_take(&latch);
	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (!forbids(capture))
			continue;
		capture->invalidated = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	latch_drop(&latch);
	return result;
}

/* With the latch held; null: it has ended, or the id is 0. */
static struct capture *capture_find(unsigned long long id)
{
	struct capture *capture = captures;

	while (capture && capture->id != id)
		capture = capture->next;
	return capture;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	const struct capture *capture;

	if (stream->capture == 0 || atomic_load_explicit(&captures_open, memory_order_relaxed) == 0)
		return status;
	latch_take(&latch);
	capture = capture_find(stream->capture);
	if (capture)
		status = capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	latch_drop(&latch);
	return status;
}

bool stream_captures(CUstream stream)
{
	return status_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void invalidate(unsigned long long id)
{
	struct capture *capture;

	latch_take(&latch);
	capture = capture_find(id);
	if (capture)
		capture->invalidated = true;
	latch_drop(&latch);
}

CUresult capture_refuse(CUstream stream)
{
	invalidate(stream->capture);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_refuse_event(CUevent event)
{
	invalidate(event->capture);
	return CUDA_ERROR_CAPTURED_EVENT;
}

/* The graph of the stream's next node. */
static CUresult graph_of(CUstream stream, CUgraph *graph)
{
	const struct capture *capture;

	latch_take(&latch);
	capture = capture_find(stream->capture);
	*graph = capture && !capture->invalidated ? capture->graph : NULL;
	latch_drop(&latch);
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult capture_work(CUstream stream, CUgraphNodeType type, uint64_t duration_ns)
{
	CUgraph graph;
	CUgraphNode node;
	CUresult result = graph_of(stream, &graph);

	return result == CUDA_SUCCESS ? node_add(&node, graph, type, duration_ns) : result;
}

/* The memory belongs to the graph: only the location is taken from the pool. */
CUresult capture_allocation(
	CUstream stream, CUmemLocation location, size_t bytes, CUdeviceptr *pointer)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location},
		.bytesize = bytes};
	CUgraph graph;
	CUgraphNode node;
	CUresult result = graph_of(stream, &graph);

	if (result == CUDA_SUCCESS)
		result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters);
	if (result == CUDA_SUCCESS)
		*pointer = parameters.dptr;
	return result;
}

CUresult capture_release(CUstream stream, CUdeviceptr pointer)
{
	CUgraph graph;
	CUgraphNode node;
	CUresult result = graph_of(stream, &graph);

	return result == CUDA_SUCCESS ? cuGraphAddMemFreeNode(&node, graph, NULL, 0, pointer)
				      : result;
}

CUresult capture_wait(CUstream stream, CUevent event)
{
	const struct capture *capture;
	CUresult result = CUDA_SUCCESS;

	REQUIRE(stream != &stream->context->legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	latch_take(&latch);
	capture = capture_find(event->capture);
	if (!capture)
		result = CUDA_ERROR_CAPTURED_EVENT;
	else if (capture->invalidated)
		result = CUDA_ERROR_INVALID_VALUE; /* an H100 with driver 580 */
	else
		stream->capture = event->capture;
	latch_drop(&latch);
	return result;
}

/* With the latch held. */
static void capture_free(struct capture *capture)
{
	struct capture **link = &captures;

	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	atomic_fetch_sub(&captures_open, 1);
	free(capture);
}

static CUresult begin(
	CUstream handle, enum stream_flavour flavour, CUgraph graph, CUstreamCaptureMode mode)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);
	struct capture *capture;

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE((unsigned int)mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(stream != &stream->context->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	REQUIRE(!stream_captures(stream), CUDA_ERROR_ILLEGAL_STATE);
	capture = calloc(1, sizeof(*capture));
	REQUIRE(capture, CUDA_ERROR_OUT_OF_MEMORY);
	*capture = (struct capture){.graph = graph,
		.own_graph = !graph,
		.mode = mode,
		.thread = &thread_mode,
		.origin = stream};
	if (!graph && graph_new(&capture->graph) != CUDA_SUCCESS) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	latch_take(&latch);
	stream->capture = capture->id = ++last_id;
	capture->next = captures;
	captures = capture;
	atomic_fetch_add(&captures_open, 1);
	latch_drop(&latch);
	return CUDA_SUCCESS;
}

/* Another thread's attempt fails, and ends the capture nevertheless: an H100 with driver 580. */
static CUresult end(struct capture *capture, CUstream stream, CUgraph *graph)
{
	CUresult result = CUDA_SUCCESS;

	REQUIRE(capture, CUDA_ERROR_ILLEGAL_STATE);
	REQUIRE(capture->origin == stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mode)
		result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	else if (capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*graph = result == CUDA_SUCCESS ? capture->graph : NULL;
	if (!*graph && capture->own_graph)
		graph_free(capture->graph);
	capture_free(capture);
	return result;
}

static CUresult end_on(CUstream handle, enum stream_flavour flavour, CUgraph *graph)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(graph, CUDA_ERROR_INVALID_VALUE);
	latch_take(&latch);
	result = end(capture_find(stream->capture), stream, graph);
	latch_drop(&latch);
	return result;
}

/* A capture ends with the stream where it began. */
void capture_forget_stream(CUstream stream)
{
	struct capture *capture;

	latch_take(&latch);
	capture = capture_find(stream->capture);
	if (capture && capture->origin == stream) {
		if (capture->own_graph)
			graph_free(capture->graph);
		capture_free(capture);
	}
	latch_drop(&latch);
}

static CUresult is_capturing(
	CUstream handle, enum stream_flavour flavour, CUstreamCaptureStatus *status)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	REQUIRE(status, CUDA_ERROR_INVALID_VALUE);
	if (result == CUDA_SUCCESS)
		*status = status_of(stream);
	return result;
}

#define BOTH(name, parameters, call)                                                               \
	CUresult name parameters                                                                   \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_LEGACY;                                 \
		return call;                                                                       \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		const enum stream_flavour flavour = STREAM_PER_THREAD;                             \
		return call;                                                                       \
	}

BOTH(cuStreamBeginCapture, (CUstream stream),
	begin(stream, flavour, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL))
BOTH(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
	begin(stream, flavour, NULL, mode))
BOTH(cuStreamBeginCaptureToGraph,
	(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges,
		size_t count, CUstreamCaptureMode mode),
	((void)nodes, (void)edges, (void)count,
		graph_valid(graph) ? begin(stream, flavour, graph, mode)
				   : CUDA_ERROR_INVALID_VALUE))
BOTH(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end_on(stream, flavour, graph))
BOTH(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
	is_capturing(stream, flavour, status))
