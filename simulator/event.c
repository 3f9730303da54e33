/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: a marker in a context's queue, whose time the engine records when it passes. Markers are
 * few and reused; an event saves its time before its marker is reused.
 */
#include "driver.h"

#include "clock.h"
#include "engine.h"

#include <stdlib.h>

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(event && flags <= 7, CUDA_ERROR_INVALID_VALUE);
	/* An event that is shared between processes would be in the device file. */
	REQUIRE(!(flags & CU_EVENT_INTERPROCESS), CUDA_ERROR_NOT_SUPPORTED);
	*event = calloc(1, sizeof(**event));
	REQUIRE(*event, CUDA_ERROR_OUT_OF_MEMORY);
	(*event)->kind = OBJECT_EVENT;
	(*event)->flags = flags;
	return CUDA_SUCCESS;
}

static bool event_valid(CUevent event)
{
	return event && event->kind == OBJECT_EVENT;
}

static struct sim_marker *marker_of(CUevent event)
{
	return &event->context->queue->markers[event->marker % SIM_MARKERS];
}

/* With its context's latch held: the event has no marker any more. */
static void forget_marker(CUevent event)
{
	CUevent *holder = &event->context->marked[event->marker % SIM_MARKERS];

	if (*holder != event)
		return;
	event->reached_ns = atomic_load(&marker_of(event)->reached_ns);
	*holder = NULL;
}

static void detach(CUevent event)
{
	CUcontext context = event->context;

	if (!context)
		return;
	latch_take(&context->latch);
	forget_marker(event);
	latch_drop(&context->latch);
}

/* A destroyed context has been drained: every time is known. */
void event_forget_context(CUcontext context)
{
	latch_take(&context->latch);
	for (unsigned int i = 0; i < SIM_MARKERS; i++) {
		if (context->marked[i])
			forget_marker(context->marked[i]);
	}
	latch_drop(&context->latch);
}

CUresult cuEventDestroy_v2(CUevent event)
{
	REQUIRE_DRIVER();
	REQUIRE(event_valid(event), CUDA_ERROR_INVALID_HANDLE);
	detach(event);
	event->kind = 0;
	free(event);
	return CUDA_SUCCESS;
}

/* With the context's latch held, and released during waits. */
static void wait_for_marker_room(CUcontext context)
{
	while (!engine_marker_room(context->queue)) {
		uint64_t oldest = atomic_load(&context->queue->markers_reached) % SIM_MARKERS;
		uint64_t position = context->queue->markers[oldest].position;

		latch_drop(&context->latch);
		queue_wait(context, position);
		latch_take(&context->latch);
	}
}

static CUresult record(CUevent event, CUstream handle, enum stream_flavour flavour)
{
	IN_CALL();
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	CUcontext context;
	uint64_t now, next;

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(event_valid(event), CUDA_ERROR_INVALID_HANDLE);
	event->capture = stream_captures(stream) ? stream->capture : 0;
	if (event->capture)
		return CUDA_SUCCESS;
	detach(event);
	context = stream->context;
	latch_take(&context->latch);
	wait_for_marker_room(context);
	next = atomic_load(&context->queue->markers_added) % SIM_MARKERS;
	if (context->marked[next])
		forget_marker(context->marked[next]);
	card_lock(context->card);
	now = clock_ns();
	engine_settle(context->card, now);
	event->marker = engine_marker_add(context->queue, now);
	card_unlock(context->card);
	event->context = context;
	event->reached_ns = 0;
	event->host_stream = stream;
	event->host_submitted = atomic_load(&stream->host_submitted);
	context->marked[event->marker % SIM_MARKERS] = event;
	latch_drop(&context->latch);
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return record(event, stream, STREAM_LEGACY);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return record(event, stream, STREAM_PER_THREAD);
}

static bool host_functions_done(CUevent event)
{
	return atomic_load(&event->host_stream->host_done) >= event->host_submitted;
}

/* The time at which a recorded event was reached, or 0. */
static uint64_t reached(CUevent event)
{
	CUcontext context = event->context;

	latch_take(&context->latch);
	if (context->marked[event->marker % SIM_MARKERS] == event) {
		card_lock(context->card);
		engine_settle(context->card, clock_ns());
		card_unlock(context->card);
		event->reached_ns = atomic_load(&marker_of(event)->reached_ns);
	}
	latch_drop(&context->latch);
	return host_functions_done(event) ? event->reached_ns : 0;
}

CUresult cuEventQuery(CUevent event)
{
	REQUIRE_DRIVER();
	REQUIRE(event_valid(event), CUDA_ERROR_INVALID_HANDLE);
	if (event->capture)
		return capture_refuse_event(event);
	REQUIRE_NO_CAPTURE();
	if (!event->context)
		return CUDA_SUCCESS;
	CUresult fault = fault_of_events(event->context->card);
	if (fault != CUDA_SUCCESS)
		return fault;
	return reached(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static void event_wait(CUevent event)
{
	if (!event->context || reached(event))
		return;
	queue_wait(event->context, marker_of(event)->position);
	host_functions_wait(event->host_stream, event->host_submitted);
}

CUresult cuEventSynchronize(CUevent event)
{
	REQUIRE_DRIVER();
	REQUIRE(event_valid(event), CUDA_ERROR_INVALID_HANDLE);
	if (event->capture)
		return capture_refuse_event(event);
	event_wait(event);
	pools_trim();
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	uint64_t from, to;

	REQUIRE_DRIVER();
	REQUIRE(milliseconds, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(event_valid(start) && event_valid(end), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(!start->capture && !end->capture, CUDA_ERROR_CAPTURED_EVENT);
	REQUIRE(start->context && end->context, CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(!((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING),
		CUDA_ERROR_INVALID_HANDLE);
	from = reached(start);
	to = reached(end);
	REQUIRE(from && to, CUDA_ERROR_NOT_READY);
	*milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
	return CUDA_SUCCESS;
}

/* Its form from CUDA 12.8 on. */
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	return cuEventElapsedTime(milliseconds, start, end);
}

/* Within a context, the queue already keeps the order. Across contexts, the calling thread waits: a
 * queue that waits for another card's is not simulated. */
static CUresult wait_event(CUstream handle, CUevent event, enum stream_flavour flavour)
{
	IN_CALL();
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
	REQUIRE(event_valid(event), CUDA_ERROR_INVALID_HANDLE);
	if (event->capture)
		return capture_wait(stream, event);
	if (!event->context || stream_captures(stream))
		return CUDA_SUCCESS;
	if (event->context != stream->context)
		event_wait(event);
	else if (!host_functions_done(event))
		host_functions_wait(event->host_stream, event->host_submitted);
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	REQUIRE(flags == 0, CUDA_ERROR_NOT_SUPPORTED);
	return wait_event(stream, event, STREAM_LEGACY);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	REQUIRE(flags == 0, CUDA_ERROR_NOT_SUPPORTED);
	return wait_event(stream, event, STREAM_PER_THREAD);
}
