/* SPDX-License-Identifier: Apache-2.0
 *
 * A capture is counted from before it begins until the driver reports that its stream is not part
 * of any capture: it is counted before its stream can receive work.
 */
#include "capture.h"

#include "cuda_work.h"
#include "interpose.h"
#include "stream.h"

static CUresult begun(CUresult result)
{
	if (result != CUDA_SUCCESS)
		atomic_fetch_sub(&gate_line.captures, 1);
	return result;
}

/* An end that fails may have ended the capture anyway (it was invalid) or not (it began on another
 * stream, or in another thread). Of two threads that end one capture, one gets the error that there
 * is none. */
static CUresult ended(
	CUresult result, bool was_captured, CUstream stream, enum null_stream null_stream)
{
	if (was_captured && result != CUDA_ERROR_ILLEGAL_STATE &&
		!stream_is_captured(stream, null_stream))
		atomic_fetch_sub(&gate_line.captures, 1);
	return result;
}

#define BEGIN(symbol, parameters, arguments)                                                       \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		atomic_fetch_add(&gate_line.captures, 1);                                          \
		return begun(REAL(symbol) arguments);                                              \
	}

#define END(symbol, null_stream, parameters, arguments)                                            \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		const bool was_captured = stream_is_captured(stream, null_stream);                 \
		return ended(REAL(symbol) arguments, was_captured, stream, null_stream);           \
	}

#define BEGIN_BOTH(name, parameters, arguments)                                                    \
	BEGIN(name, parameters, arguments)                                                         \
	BEGIN(name##_ptsz, parameters, arguments)

#define END_BOTH(name, parameters, arguments)                                                      \
	END(name, NULL_IS_LEGACY, parameters, arguments)                                           \
	END(name##_ptsz, NULL_IS_PER_THREAD, parameters, arguments)

BEGIN_BOTH(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN_BOTH(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGIN_BOTH(cuStreamBeginCaptureToGraph,
	(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
		const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
	(stream, graph, dependencies, edges, count, mode))
BEGIN_BOTH(cuStreamBeginRecaptureToGraph,
	(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
		CUgraphRecaptureCallback callback, void *data),
	(stream, mode, graph, callback, data))
BEGIN_BOTH(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *parameters),
	(stream, parameters))
END_BOTH(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
END_BOTH(cuStreamEndCaptureToCig, (CUstream stream), (stream))
