/* SPDX-License-Identifier: Apache-2.0
 *
 * Creation and destruction of streams. A stream's last work gets a timing event before the stream
 * is destroyed.
 *
 * The legacy default stream and the streams that do not opt out wait for each other ("Stream
 * synchronization behavior" in the driver API's documentation), and for a timing event as for a
 * kernel: one that is recorded later than its work could make streams wait that the program knows
 * to be independent. So if there are such streams, each unit of work on the legacy stream gets its
 * timing event at once.
 */
#include "timing_event.h"
#include "quota/pages.h"

_Atomic bool timing_blocking_streams;

static void legacy_is_not_plain(struct card_timing *card)
{
	for (unsigned place = 0; place < TIMING_STREAMS; place++)
		if (card->streams[place].handle == CU_STREAM_LEGACY)
			card->streams[place].state.is_plain = false;
}

void timing_note_blocking_stream(void)
{
	if (atomic_exchange(&timing_blocking_streams, true))
		return;
	for (unsigned card = 0; card < pages.card_count; card++) {
		spinlock_lock(&work_accounts[card].lock);
		legacy_is_not_plain(&card_timing[card]);
		spinlock_unlock(&work_accounts[card].lock);
	}
}

static CUresult created(CUresult result, unsigned int flags)
{
	if (result == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING))
		timing_note_blocking_stream();
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

/* No timing event can be recorded on the stream any more: its work gets the last one. */
static void close_stream(unsigned number, CUstream handle)
{
	struct card_timing *card = &card_timing[number];
	CUcontext context = NULL;

	spinlock_lock(&work_accounts[number].lock);
	const uint8_t place = stream_find(card, (uintptr_t)handle);
	if (place == NO_STREAM) {
		spinlock_unlock(&work_accounts[number].lock);
		return;
	}
	const struct timing_stream stream = card->streams[place];
	if (stream.state.open.pieces > 0 && stream.context != NO_CONTEXT)
		context = card->contexts[stream.context].handle;
	spinlock_unlock(&work_accounts[number].lock);
	if (context)
		timing_record_for(number, place, &stream, context);

	spinlock_lock(&work_accounts[number].lock);
	if (card->streams[place].state.generation == stream.state.generation) {
		if (card->streams[place].state.open.pieces > 0)
			group_make_untimed(number, place);
		card->streams[place].state.key = STREAM_GONE;
		card->streams[place].state.is_plain = false;
		card->streams[place].is_untimed = true;
	}
	spinlock_unlock(&work_accounts[number].lock);
}

static void streams_before_end(CUstream handle)
{
	bool is_known = false;

	if (handle <= CU_STREAM_PER_THREAD)
		return;
	for (unsigned card = 0; card < pages.card_count && !is_known; card++) {
		spinlock_lock(&work_accounts[card].lock);
		is_known = card_timing[card].ready &&
			   stream_find(&card_timing[card], (uintptr_t)handle) != NO_STREAM;
		spinlock_unlock(&work_accounts[card].lock);
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
