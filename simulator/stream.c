/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams. All work of a context passes through one queue in the order of submission, which is an
 * order that every stream's rules allow; a stream remembers the position of its own last work.
 */
#include "driver.h"

#include <stdlib.h>

/* Destroyed ones stay: an event may refer to one, and so may a stale handle, which is then
 * refused. */
static struct latch latch;
static CUstream destroyed;

void stream_begin(CUstream stream, CUcontext context, unsigned int flags)
{
	stream->kind = OBJECT_STREAM;
	stream->flags = flags;
	stream->context = context;
	latch_take(&context->latch);
	stream->next = context->streams;
	context->streams = stream;
	latch_drop(&context->latch);
}

CUresult stream_resolve(CUstream handle, enum stream_flavour flavour, CUstream *stream)
{
	CUcontext context;
	CUresult status = context_current(&context);

	if (status != CUDA_SUCCESS)
		return status;
	if (handle == NULL)
		*stream = flavour == STREAM_LEGACY ? &context->legacy : &context->per_thread;
	else if (handle == CU_STREAM_LEGACY)
		*stream = &context->legacy;
	else if (handle == CU_STREAM_PER_THREAD)
		*stream = &context->per_thread;
	else if (handle->kind == OBJECT_STREAM)
		*stream = handle;
	else
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	CUstream made;

	(void)priority; /* all work is in the order of submission */
	REQUIRE_CONTEXT(context);
	REQUIRE(stream && flags <= CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
	made = calloc(1, sizeof(*made));
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	stream_begin(made, context, flags);
	*stream = made;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	REQUIRE_DRIVER();
	REQUIRE(stream > CU_STREAM_PER_THREAD && stream->kind == OBJECT_STREAM,
		CUDA_ERROR_INVALID_HANDLE);
	capture_forget_stream(stream);
	host_functions_wait(stream, atomic_load(&stream->host_submitted));
	if (context_valid(stream->context)) {
		latch_take(&stream->context->latch);
		for (CUstream *link = &stream->context->streams; *link; link = &(*link)->next) {
			if (*link == stream) {
				*link = stream->next;
				break;
			}
		}
		latch_drop(&stream->context->latch);
	}
	stream->kind = 0;
	latch_take(&latch);
	stream->next = destroyed;
	destroyed = stream;
	latch_drop(&latch);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

bool stream_done(CUstream stream)
{
	return queue_reached(stream->context, atomic_load(&stream->end_ns)) &&
	       atomic_load(&stream->host_done) == atomic_load(&stream->host_submitted);
}

void stream_drain(CUstream stream)
{
	queue_wait(stream->context, atomic_load(&stream->end_ns));
	host_functions_wait(stream, atomic_load(&stream->host_submitted));
	pools_trim();
}

/* Both forms of a function on one stream, from its body in terms of `stream`. */
#define ON_STREAM(name, parameters, handle, body)                                                  \
	CUresult name parameters                                                                   \
	{                                                                                          \
		IN_CALL();                                                                         \
		CUstream stream;                                                                   \
		CUresult status = stream_resolve(handle, STREAM_LEGACY, &stream);                  \
		return status == CUDA_SUCCESS ? body : status;                                     \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		IN_CALL();                                                                         \
		CUstream stream;                                                                   \
		CUresult status = stream_resolve(handle, STREAM_PER_THREAD, &stream);              \
		return status == CUDA_SUCCESS ? body : status;                                     \
	}

static CUresult synchronize(CUstream stream)
{
	if (stream_captures(stream))
		return capture_refuse(stream);
	stream_drain(stream);
	return CUDA_SUCCESS;
}

static CUresult get_context(CUstream stream, CUcontext *context)
{
	REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
	*context = stream->context;
	return CUDA_SUCCESS;
}

static CUresult query(CUstream stream)
{
	if (stream_captures(stream))
		return capture_refuse(stream);
	return stream_done(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

ON_STREAM(cuStreamSynchronize, (CUstream handle), handle, synchronize(stream))
ON_STREAM(cuStreamQuery, (CUstream handle), handle, query(stream))
ON_STREAM(
	cuStreamGetCtx, (CUstream handle, CUcontext *context), handle, get_context(stream, context))
