/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams come and go. What a stream was given last gets a marker before it goes.
 *
 * The legacy default stream and the streams that do not opt out wait for each other ("Stream
 * synchronization behavior" in the driver API's documentation), and for a marker as for a kernel:
 * one that is recorded there later than the work that it is behind could make streams wait that the
 * program knows to be free of each other. So where there are such streams each piece on the legacy
 * one has its marker at once.
 */
#include "marker.h"
#include "quota/pages.h"

_Atomic bool marker_blocking_streams;

static void legacy_is_not_plain(struct card_markers *card)
{
	for (unsigned place = 0; place < MARKER_STREAMS; place++)
		if (card->streams[place].handle == CU_STREAM_LEGACY)
			card->streams[place].lane.is_plain = false;
}

void marker_meet_blocking_stream(void)
{
	if (atomic_exchange(&marker_blocking_streams, true))
		return;
	for (unsigned card = 0; card < pages.card_count; card++) {
		spin_take(&accounts[card].lock);
		legacy_is_not_plain(&card_markers[card]);
		spin_drop(&accounts[card].lock);
	}
}

static CUresult created(CUresult result, unsigned int flags)
{
	if (result == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING))
		marker_meet_blocking_stream();
	return result;
}

CUDA(cuStreamCreate, (CUstream * stream, unsigned int flags))
{
	return created(REAL(cuStreamCreate)(stream, flags), flags);
}

CUDA(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority))
{
	return created(REAL(cuStreamCreateWithPriority)(stream, flags, priority), flags);
}

/* No marker can be recorded on it any more: what is on it gets its last one. */
static void close_stream(unsigned number, CUstream handle)
{
	struct card_markers *card = &card_markers[number];
	CUcontext context = NULL;

	spin_take(&accounts[number].lock);
	const uint8_t place = stream_find(card, (uintptr_t)handle);
	if (place == NO_STREAM) {
		spin_drop(&accounts[number].lock);
		return;
	}
	const struct marker_stream stream = card->streams[place];
	if (stream.lane.open.pieces > 0 && stream.context != NO_CONTEXT)
		context = card->contexts[stream.context].handle;
	spin_drop(&accounts[number].lock);
	if (context)
		marker_record_for(number, place, &stream, context);

	spin_take(&accounts[number].lock);
	if (card->streams[place].lane.generation == stream.lane.generation) {
		if (card->streams[place].lane.open.pieces > 0)
			group_is_loose(number, place);
		card->streams[place].lane.key = STREAM_GONE;
		card->streams[place].lane.is_plain = false;
		card->streams[place].is_loose = true;
	}
	spin_drop(&accounts[number].lock);
}

static void streams_before_end(CUstream handle)
{
	bool is_known = false;

	if (handle <= CU_STREAM_PER_THREAD)
		return;
	for (unsigned card = 0; card < pages.card_count && !is_known; card++) {
		spin_take(&accounts[card].lock);
		is_known = card_markers[card].ready &&
			   stream_find(&card_markers[card], (uintptr_t)handle) != NO_STREAM;
		spin_drop(&accounts[card].lock);
	}
	if (!is_known)
		return;
	const bool held = meter_hold();
	for (unsigned card = 0; card < pages.card_count; card++)
		close_stream(card, handle);
	if (held)
		pthread_mutex_unlock(&metering);
}

CUDA(cuStreamDestroy, (CUstream stream))
{
	streams_before_end(stream);
	return REAL(cuStreamDestroy)(stream);
}

CUDA(cuStreamDestroy_v2, (CUstream stream))
{
	streams_before_end(stream);
	return REAL(cuStreamDestroy_v2)(stream);
}
