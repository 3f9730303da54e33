/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures from beginning to end. A stream takes part from cuStreamBeginCapture on, or from when it
 * waits for an event that was recorded in a capture; all streams have joined the first again when
 * the capture ends. Rules and errors: the driver API's "Stream Management", and "CUDA Graphs" in
 * the programming guide.
 */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

_Atomic unsigned int captures_open;
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

/* The legacy stream waits for the blocking streams of its context, including capturing ones. */
static bool waits_for(CUcontext context, const struct capture *capture)
{
	for (const struct participant *part = capture->participants; part; part = part->next) {
		if (part->stream->context == context &&
			!(part->stream->flags & CU_STREAM_NON_BLOCKING))
			return true;
	}
	return false;
}

CUresult capture_forbids_legacy(CUcontext context, bool invalidate)
{
	CUresult result = CUDA_SUCCESS;

	latch_take(&latch);
	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (!waits_for(context, capture))
			continue;
		capture->invalidated |= invalidate;
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	latch_drop(&latch);
	return result;
}

CUresult capture_refuse(CUstream stream)
{
	latch_take(&latch);
	stream->participant->capture->invalidated = true;
	latch_drop(&latch);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_ready(CUstream stream)
{
	return stream->participant->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
							 : CUDA_SUCCESS;
}

/* Add to the dependencies of the stream's next node. */
static CUresult add_nodes(struct participant *part, const CUgraphNode *nodes, size_t count)
{
	CUgraphNode *grown = realloc(part->nodes, (part->count + count + 1) * sizeof(*grown));

	REQUIRE(grown, CUDA_ERROR_OUT_OF_MEMORY);
	part->nodes = grown;
	for (size_t i = 0; i < count; i++) {
		bool known = false;

		for (size_t j = 0; j < part->count && !known; j++)
			known = part->nodes[j] == nodes[i];
		if (!known)
			part->nodes[part->count++] = nodes[i];
	}
	return CUDA_SUCCESS;
}

CUresult capture_advance(CUstream stream, CUgraphNode node)
{
	stream->participant->count = 0;
	return add_nodes(stream->participant, &node, 1);
}

static CUresult take_part(struct capture *capture, CUstream stream)
{
	struct participant *part = calloc(1, sizeof(*part));

	REQUIRE(part, CUDA_ERROR_OUT_OF_MEMORY);
	part->capture = capture;
	part->stream = stream;
	part->next = capture->participants;
	capture->participants = part;
	stream->participant = part;
	return CUDA_SUCCESS;
}

static void capture_free(struct capture *capture)
{
	for (struct capture **link = &captures; *link; link = &(*link)->next) {
		if (*link == capture) {
			*link = capture->next;
			atomic_fetch_sub(&captures_open, 1);
			break;
		}
	}
	while (capture->participants) {
		struct participant *part = capture->participants;

		capture->participants = part->next;
		part->stream->participant = NULL;
		free(part->nodes);
		free(part);
	}
	free(capture);
}

static CUresult begin(CUstream stream, CUgraph graph, const CUgraphNode *nodes, size_t count,
	CUstreamCaptureMode mode)
{
	struct capture *capture = calloc(1, sizeof(*capture));
	CUresult result = CUDA_SUCCESS;

	REQUIRE(capture, CUDA_ERROR_OUT_OF_MEMORY);
	*capture = (struct capture){.id = ++last_id,
		.graph = graph,
		.own_graph = !graph,
		.mode = mode,
		.thread = &thread_mode,
		.origin = stream};
	if (!graph)
		result = graph_new(&capture->graph);
	if (result == CUDA_SUCCESS) {
		capture->nodes_before = capture->graph->node_count;
		result = take_part(capture, stream);
	}
	if (result == CUDA_SUCCESS)
		result = add_nodes(stream->participant, nodes, count);
	if (result != CUDA_SUCCESS) {
		if (!graph && capture->graph)
			graph_free(capture->graph);
		capture_free(capture);
		return result;
	}
	capture->next = captures;
	captures = capture;
	atomic_fetch_add(&captures_open, 1);
	return CUDA_SUCCESS;
}

static CUresult begin_on(CUstream handle, enum stream_flavour flavour, CUgraph graph,
	const CUgraphNode *nodes, size_t count, CUstreamCaptureMode mode)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE((unsigned int)mode <= CU_STREAM_CAPTURE_MODE_RELAXED && (nodes || count == 0),
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(stream != &stream->context->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	REQUIRE(!stream->participant, CUDA_ERROR_ILLEGAL_STATE);
	for (size_t i = 0; i < count; i++)
		REQUIRE(node_valid(nodes[i]) && nodes[i]->graph == graph, CUDA_ERROR_INVALID_VALUE);
	latch_take(&latch);
	result = begin(stream, graph, nodes, count, mode);
	latch_drop(&latch);
	return result;
}

/* Whether the first stream depends on every captured node: nodes without dependents are the ends,
 * and the stream must continue after all of them. */
static bool joined(const struct capture *capture)
{
	const struct participant *origin = capture->origin->participant;
	size_t place = 0;

	for (CUgraphNode node = capture->graph->nodes; node; node = node->next)
		node->step = place++ < capture->nodes_before;
	for (CUgraphNode node = capture->graph->nodes; node; node = node->next) {
		for (size_t i = 0; i < node->dependency_count; i++)
			node->dependencies[i]->step = true;
	}
	for (size_t i = 0; i < origin->count; i++)
		origin->nodes[i]->step = true;
	for (CUgraphNode node = capture->graph->nodes; node; node = node->next) {
		if (!node->step)
			return false;
	}
	return true;
}

static CUresult end(struct capture *capture, CUstream stream, CUgraph *graph)
{
	CUresult result = CUDA_SUCCESS;

	REQUIRE(capture->origin == stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	REQUIRE(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->thread == &thread_mode,
		CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	if (capture->invalidated)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!joined(capture))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	*graph = result == CUDA_SUCCESS ? capture->graph : NULL;
	if (result != CUDA_SUCCESS && capture->own_graph)
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
	REQUIRE(stream->participant, CUDA_ERROR_ILLEGAL_STATE);
	latch_take(&latch);
	result = end(stream->participant->capture, stream, graph);
	latch_drop(&latch);
	return result;
}

void capture_forget_stream(CUstream stream)
{
	if (!stream->participant)
		return;
	latch_take(&latch);
	if (stream->participant->capture->origin == stream) {
		if (stream->participant->capture->own_graph)
			graph_free(stream->participant->capture->graph);
		capture_free(stream->participant->capture);
	} else {
		stream->participant->capture->invalidated = true;
	}
	latch_drop(&latch);
}

static struct captured *captured_new(const struct participant *part)
{
	struct captured *captured =
		calloc(1, sizeof(*captured) + part->count * sizeof(captured->nodes[0]));

	if (!captured)
		return NULL;
	captured->id = part->capture->id;
	captured->count = part->count;
	if (part->count > 0)
		memcpy(captured->nodes, part->nodes, part->count * sizeof(captured->nodes[0]));
	return captured;
}

CUresult capture_record(CUstream stream, CUevent event)
{
	struct captured *captured;
	CUresult result = capture_ready(stream);

	if (result != CUDA_SUCCESS)
		return result;
	captured = captured_new(stream->participant);
	REQUIRE(captured, CUDA_ERROR_OUT_OF_MEMORY);
	free(event->captured);
	event->captured = captured;
	return CUDA_SUCCESS;
}

/* With the latch held. */
static CUresult join(CUstream stream, const struct captured *captured)
{
	struct capture *capture = captures;
	CUresult result = CUDA_SUCCESS;

	while (capture && capture->id != captured->id)
		capture = capture->next;
	REQUIRE(capture, CUDA_ERROR_CAPTURED_EVENT); /* ended since */
	REQUIRE(!capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (stream == &stream->context->legacy) {
		capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (stream->participant && stream->participant->capture != capture) {
		capture->invalidated = stream->participant->capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!stream->participant)
		result = take_part(capture, stream);
	return result == CUDA_SUCCESS
		       ? add_nodes(stream->participant, captured->nodes, captured->count)
		       : result;
}

CUresult capture_wait(CUstream stream, CUevent event)
{
	CUresult result;

	latch_take(&latch);
	if (event->captured) {
		result = join(stream, event->captured);
	} else {
		/* Nodes that were recorded outside do not belong to the graph. */
		stream->participant->capture->invalidated = true;
		result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	latch_drop(&latch);
	return result;
}

CUresult capture_set_nodes(CUstream stream, const CUgraphNode *nodes, size_t count, bool keep)
{
	CUresult result;

	for (size_t i = 0; i < count; i++)
		REQUIRE(node_valid(nodes[i]) &&
				nodes[i]->graph == stream->participant->capture->graph,
			CUDA_ERROR_INVALID_VALUE);
	latch_take(&latch);
	if (!keep)
		stream->participant->count = 0;
	result = add_nodes(stream->participant, nodes, count);
	latch_drop(&latch);
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
	begin_on(stream, flavour, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))
BOTH(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
	begin_on(stream, flavour, NULL, NULL, 0, mode))
BOTH(cuStreamBeginCaptureToGraph,
	(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges,
		size_t count, CUstreamCaptureMode mode),
	((void)edges, graph_valid(graph) ? begin_on(stream, flavour, graph, nodes, count, mode)
					 : CUDA_ERROR_INVALID_VALUE))
BOTH(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end_on(stream, flavour, graph))
