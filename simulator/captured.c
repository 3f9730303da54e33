/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls on a capturing stream, which become nodes, and the queries about such a stream.
 */
#include "capture.h"

/* The position of the stream's next node: the arguments of the functions that add one. */
#define PLACE(part) (part)->capture->graph, (part)->nodes, (part)->count

static CUresult add_content(CUstream stream, CUgraphNodeType type, const union content *content)
{
	CUgraphNode node;
	CUresult result = capture_ready(stream);

	if (result == CUDA_SUCCESS)
		result = node_add(&node, PLACE(stream->participant), type);
	if (result != CUDA_SUCCESS)
		return result;
	node->content = *content;
	return capture_advance(stream, node);
}

CUresult capture_kernel(CUstream stream, uint64_t duration_ns)
{
	return add_content(
		stream, CU_GRAPH_NODE_TYPE_KERNEL, &(union content){.duration_ns = duration_ns});
}

CUresult capture_copy(CUstream stream, const CUDA_MEMCPY3D *copy)
{
	return add_content(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &(union content){.copy = *copy});
}

CUresult capture_fill(CUstream stream, const CUDA_MEMSET_NODE_PARAMS *fill)
{
	return add_content(stream, CU_GRAPH_NODE_TYPE_MEMSET, &(union content){.fill = *fill});
}

CUresult capture_host(CUstream stream, CUhostFn function, void *data)
{
	return add_content(stream, CU_GRAPH_NODE_TYPE_HOST,
		&(union content){.host = {.fn = function, .userData = data}});
}

CUresult capture_record_external(CUstream stream, CUevent event)
{
	return add_content(
		stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &(union content){.event = event});
}

CUresult capture_wait_external(CUstream stream, CUevent event)
{
	return add_content(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &(union content){.event = event});
}

/* The memory belongs to the graph: only the location is taken from the pool. */
CUresult capture_allocation(
	CUstream stream, CUmemLocation location, size_t bytes, CUdeviceptr *pointer)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location},
		.bytesize = bytes};
	CUgraphNode node;
	CUresult result = capture_ready(stream);

	if (result == CUDA_SUCCESS)
		result = cuGraphAddMemAllocNode(&node, PLACE(stream->participant), &parameters);
	if (result != CUDA_SUCCESS)
		return result;
	*pointer = parameters.dptr;
	return capture_advance(stream, node);
}

CUresult capture_release(CUstream stream, CUdeviceptr pointer)
{
	CUgraphNode node;
	CUresult result = capture_ready(stream);

	if (result == CUDA_SUCCESS)
		result = cuGraphAddMemFreeNode(&node, PLACE(stream->participant), pointer);
	return result == CUDA_SUCCESS ? capture_advance(stream, node) : result;
}

/* A query does not disturb a capture, whatever the stream. */
static CUresult resolve_asked(CUstream handle, enum stream_flavour flavour, CUstream *stream)
{
	CUcontext context;
	CUresult result = context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == CU_STREAM_LEGACY || (!handle && flavour == STREAM_LEGACY)) {
		*stream = &context->legacy;
		return capture_forbids_legacy(context, false);
	}
	return stream_resolve(handle, flavour, stream);
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
	if (!stream->participant)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return capture_ready(stream) == CUDA_SUCCESS ? CU_STREAM_CAPTURE_STATUS_ACTIVE
						     : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

static CUresult is_capturing(
	CUstream handle, enum stream_flavour flavour, CUstreamCaptureStatus *status)
{
	CUstream stream;
	CUresult result = resolve_asked(handle, flavour, &stream);

	REQUIRE(status, CUDA_ERROR_INVALID_VALUE);
	if (result == CUDA_SUCCESS)
		*status = status_of(stream);
	return result;
}

/* All outputs except the status may be null, and are only written for an active capture. */
static CUresult capture_told(CUstream handle, enum stream_flavour flavour,
	CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
	size_t *count)
{
	CUstream stream;
	CUresult result = resolve_asked(handle, flavour, &stream);
	const struct participant *part;

	REQUIRE(status, CUDA_ERROR_INVALID_VALUE);
	if (result != CUDA_SUCCESS)
		return result;
	*status = status_of(stream);
	if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return CUDA_SUCCESS;
	part = stream->participant;
	if (id)
		*id = part->capture->id;
	if (graph)
		*graph = part->capture->graph;
	if (nodes)
		*nodes = part->nodes;
	if (count)
		*count = part->count;
	return CUDA_SUCCESS;
}

/* Edges have no data here. */
static CUresult capture_told_edges(CUstream handle, enum stream_flavour flavour,
	CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
	const CUgraphEdgeData **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return capture_told(handle, flavour, status, id, graph, nodes, count);
}

#define ADD_DEPENDENCIES 0 /* CUstreamUpdateCaptureDependencies_flags */
#define SET_DEPENDENCIES 1

static CUresult update(CUstream handle, enum stream_flavour flavour, const CUgraphNode *nodes,
	size_t count, unsigned int flags)
{
	IN_CALL();
	CUstream stream;
	CUresult result = stream_resolve(handle, flavour, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(flags <= SET_DEPENDENCIES && (nodes || count == 0), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(stream->participant, CUDA_ERROR_ILLEGAL_STATE);
	result = capture_ready(stream);
	return result == CUDA_SUCCESS
		       ? capture_set_nodes(stream, nodes, count, flags == ADD_DEPENDENCIES)
		       : result;
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

BOTH(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
	is_capturing(stream, flavour, status))
BOTH(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id),
	capture_told(stream, flavour, status, id, NULL, NULL, NULL))
BOTH(cuStreamGetCaptureInfo_v2,
	(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
		const CUgraphNode **nodes, size_t *count),
	capture_told(stream, flavour, status, id, graph, nodes, count))
BOTH(cuStreamGetCaptureInfo_v3,
	(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
		const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count),
	capture_told_edges(stream, flavour, status, id, graph, nodes, edges, count))
BOTH(cuStreamUpdateCaptureDependencies,
	(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags),
	update(stream, flavour, nodes, count, flags))
BOTH(cuStreamUpdateCaptureDependencies_v2,
	(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
		unsigned int flags),
	((void)edges, update(stream, flavour, nodes, count, flags)))
