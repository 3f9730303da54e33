/* SPDX-License-Identifier: Apache-2.0
 *
 * What has ended. The oldest marker of each stream is asked for; when it has been reached, the time
 * between it and the last one that was, of any stream, is what the card took for the group.
 */
#include "marker.h"

#include "quota/pages.h"
#include "share/bell.h"
#include "share/clock.h"
#include "share/futex.h"
#include "share/progress.h"
#include "stream.h"

/* How long after a look that came too early the next one is: a part of what it has taken so far,
 * and of the time between two markers. Until the end of a long piece is seen the card stands still.
 */
#define AGAIN_PART 64
#define AGAIN_LEAST_PART 25
#define AGAIN_MOST_PART 2

/* How long work behind the last marker waits for more of it before the meter records one. */
#define OPEN_PART 2
#define OPEN_LEAST_NS UINT64_C(20000)
#define OPEN_MOST_NS UINT64_C(250000)

enum look { LOOK_ENDED, LOOK_LATER, LOOK_DIFFERS };

/* A marker and what its time is measured from, while the lock is not held. */
struct looked {
	uint8_t stream, marker;
	uint32_t generation;
	CUcontext context;
	CUevent event, last;
};

static uint64_t bounded(uint64_t value, uint64_t least, uint64_t most)
{
	return value < least ? least : value > most ? most : value;
}

static uint64_t least(uint64_t left, uint64_t right)
{
	return left < right ? left : right;
}

static unsigned lowest(uint64_t bits)
{
	return (unsigned)__builtin_ctzll(bits);
}

/* The oldest of a stream, if it is time to look at it. With the lock. */
static enum look look_begin(
	struct card_markers *card, uint8_t place, uint64_t now_ns, struct looked *looked)
{
	const struct marker_stream *stream = &card->streams[place];

	if (stream->first == NO_MARKER)
		return LOOK_LATER;
	const struct marker *marker = &card->markers[stream->first];
	const struct marker_context *context = &card->contexts[marker->context];
	if (marker->look_ns > now_ns || context->is_ending)
		return LOOK_LATER;
	*looked = (struct looked){.stream = place,
		.marker = stream->first,
		.generation = stream->lane.generation,
		.context = context->handle,
		.event = marker->event,
		.last = context->last};
	return LOOK_ENDED;
}

static bool is_same(const struct card_markers *card, const struct looked *looked)
{
	const struct marker_stream *stream = &card->streams[looked->stream];

	return stream->lane.generation == looked->generation && stream->first == looked->marker &&
	       card->markers[looked->marker].event == looked->event &&
	       card->contexts[card->markers[looked->marker].context].last == looked->last;
}

static void look_later(unsigned number, const struct looked *looked, uint64_t now_ns)
{
	struct card_markers *card = &card_markers[number];

	spin_take(&accounts[number].lock);
	if (is_same(card, looked)) {
		struct marker *marker = &card->markers[looked->marker];
		marker->not_reached_ns = now_ns;
		const uint64_t marker_ns = gate_marker_ns(&grant_card(number)->gate);
		marker->look_ns =
			now_ns + bounded((now_ns - marker->recorded_ns) / AGAIN_PART,
					 marker_ns / AGAIN_LEAST_PART, marker_ns / AGAIN_MOST_PART);
	}
	spin_drop(&accounts[number].lock);
}

/* Not from a time in which there was work whose end nobody saw. */
static void learn(unsigned number, const struct group *group, uint64_t taken_ns, bool alone)
{
	struct account *account = &accounts[number];

	if (card_markers[number].loose_count > 0)
		return;
	alone = alone && group->parts == 1 && !group->has_more;
	for (unsigned part = 0; part < group->parts; part++)
		estimate_learn(&account->estimates, group->part[part].place,
			group->part[part].count, group->estimate_ns, taken_ns, alone);
}

/* When on CLOCK_MONOTONIC the marker was reached: so long after the last one; but what two clocks
 * say in turn drifts apart, and a start is recorded before it comes to its turn. */
static uint64_t end_of(const struct marker *marker, uint64_t reckoned_ns, uint64_t now_ns)
{
	return bounded(reckoned_ns, least(marker->not_reached_ns, now_ns), now_ns);
}

/* The driver's word on how long after the last one a marker was reached. */
struct elapsed {
	bool is_known;
	bool is_negative; /* the last one was reached later */
	uint64_t ns;
};

/* With an error that will not go away everything has ended, and nothing tells when. */
static struct elapsed elapsed_of(const struct looked *looked, CUresult result)
{
	float milliseconds = 0;

	if (result != CUDA_SUCCESS || !looked->last ||
		REAL(cuEventElapsedTime)(&milliseconds, looked->last, looked->event) !=
			CUDA_SUCCESS)
		return (struct elapsed){.is_known = false};
	return (struct elapsed){.is_known = true,
		.is_negative = milliseconds < 0,
		.ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0};
}

/* Asked with the event's context current: cuda.h has no context's error for cuEventQuery, but one
 * for cuEventElapsedTime. False: it was not reached yet. */
static bool was_reached(const struct looked *looked, struct elapsed *elapsed)
{
	CUcontext context = looked->context;
	CUresult result = REAL(cuCtxPushCurrent_v2)(context);

	*elapsed = (struct elapsed){.is_known = false};
	if (result != CUDA_SUCCESS)
		return true;
	result = REAL(cuEventQuery)(looked->event);
	if (result != CUDA_ERROR_NOT_READY)
		*elapsed = elapsed_of(looked, result);
	REAL(cuCtxPopCurrent_v2)(&context);
	return result != CUDA_ERROR_NOT_READY;
}

/* From now on times are measured from this marker. Returns an event to keep. */
static CUevent measure_from(
	struct marker_context *context, const struct marker *marker, uint64_t end_ns)
{
	CUevent before = context->last;

	context->last = marker->event;
	context->last_ns = end_ns;
	return before;
}

/* The group of a marker that was reached. With the lock. Returns an event to keep. */
static CUevent group_ended(unsigned number, const struct marker *marker,
	const struct elapsed *elapsed, bool alone, uint64_t now_ns)
{
	struct card_markers *card = &card_markers[number];
	struct account *account = &accounts[number];
	struct marker_context *context = &card->contexts[marker->context];
	const struct group *group = &marker->group;

	/* Busy with what nobody has measured, up to now: also with what an open gate let pass. */
	if (!elapsed->is_known || card->has_backlog) {
		if (elapsed->is_known)
			learn(number, group, elapsed->ns, false);
		card->has_backlog = false;
		account_end(account, group->pieces, group->estimate_ns, now_ns, now_ns);
		return measure_from(context, marker, now_ns);
	}
	if (elapsed->is_negative) { /* within what has been counted */
		account_end(account, group->pieces, group->estimate_ns, 0, account->since_ns);
		return marker->event;
	}
	const uint64_t end_ns = end_of(marker, context->last_ns + elapsed->ns, now_ns);
	const uint64_t counted_ns =
		account_end(account, group->pieces, group->estimate_ns, elapsed->ns, end_ns);
	if (counted_ns > 0)
		learn(number, group, counted_ns, alone);
	return measure_from(context, marker, end_ns);
}

/* The oldest marker out, and the next one's look brought forward if this one was early. With the
 * lock. */
static CUevent marker_reached(
	unsigned number, const struct looked *looked, const struct elapsed *elapsed)
{
	struct card_markers *card = &card_markers[number];
	const struct marker marker = card->markers[looked->marker];
	const bool alone = (card->live & (card->live - 1)) == 0;
	const uint64_t now_ns = clock_ns();

	marker_remove(card, looked->stream);
	CUevent spare = group_ended(number, &marker, elapsed, alone, now_ns);
	const struct marker_stream *stream = &card->streams[looked->stream];
	if (stream->first != NO_MARKER) {
		struct marker *next = &card->markers[stream->first];
		next->look_ns = least(next->look_ns,
			accounts[number].since_ns + marker_first_look(&grant_card(number)->gate,
							    next->group.estimate_ns));
	}
	return spare;
}

static enum look look_at(unsigned number, uint8_t place, uint64_t now_ns)
{
	struct card_markers *card = &card_markers[number];
	struct account *account = &accounts[number];
	struct looked looked;

	spin_take(&account->lock);
	const enum look due = look_begin(card, place, now_ns, &looked);
	spin_drop(&account->lock);
	if (due != LOOK_ENDED)
		return due;
	struct elapsed elapsed;
	if (!was_reached(&looked, &elapsed)) {
		look_later(number, &looked, now_ns);
		return LOOK_LATER;
	}
	CUevent spare = NULL;
	uint8_t context = 0;
	uint32_t generation = 0;
	spin_take(&account->lock);
	const bool same = is_same(card, &looked);
	if (same) {
		context = card->markers[looked.marker].context;
		generation = card->contexts[context].generation;
		spare = marker_reached(number, &looked, &elapsed);
	}
	spin_drop(&account->lock);
	event_put(number, context, generation, spare);
	return same ? LOOK_ENDED : LOOK_DIFFERS;
}

/* Take what is behind the last marker of a stream that has not grown since the last look. With the
 * lock. */
static bool open_is_due(struct card_markers *card, uint8_t place)
{
	struct marker_stream *stream = &card->streams[place];
	const bool has_grown = stream->lane.added != stream->added_seen;

	stream->added_seen = stream->lane.added;
	return !has_grown && stream->marking == 0;
}

/* Another thread's stream: it may be capturing by now, and what is recorded then is no moment. */
static bool is_capturing(CUstream handle)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return REAL(cuStreamIsCapturing)(handle, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void marker_record_for(
	unsigned number, uint8_t place, const struct marker_stream *stream, CUcontext context)
{
	struct card_markers *card = &card_markers[number];

	const bool is_current = REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;

	if (is_current && !is_capturing(stream->handle)) {
		marker_record(number, place, stream->lane.generation);
	} else {
		spin_take(&accounts[number].lock);
		if (card->streams[place].lane.generation == stream->lane.generation)
			group_is_loose(number, place);
		spin_drop(&accounts[number].lock);
	}
	if (is_current)
		REAL(cuCtxPopCurrent_v2)(&context);
}

/* Work that no marker will come behind unless we record it. */
static void close_open(unsigned number, uint8_t place)
{
	struct card_markers *card = &card_markers[number];
	CUcontext context = NULL;

	spin_take(&accounts[number].lock);
	if (card->streams[place].lane.open.pieces > 0 && open_is_due(card, place)) {
		const struct marker_context *owner = &card->contexts[card->streams[place].context];
		if (!card->streams[place].lane.is_plain)
			group_is_loose(number, place);
		else if (!owner->is_ending)
			context = owner->handle;
	}
	const struct marker_stream stream = card->streams[place];
	spin_drop(&accounts[number].lock);
	if (context)
		marker_record_for(number, place, &stream, context);
}

/* Whoever ends a context looks after it. */
static uint64_t look_of(
	const struct card_markers *card, const struct marker *marker, uint64_t now_ns)
{
	return card->contexts[marker->context].is_ending ? now_ns + LOOK_MOST_NS : marker->look_ns;
}

/* When to look again. With the lock. */
static uint64_t next_look(const struct card_markers *card, uint64_t now_ns)
{
	uint64_t next = UINT64_MAX;

	for (uint64_t bits = card->live; bits; bits &= bits - 1)
		next = least(next,
			look_of(card, &card->markers[card->streams[lowest(bits)].first], now_ns));
	/* While markers are waited for, that is soon enough. */
	for (uint64_t bits = card->live ? 0 : card->open; bits; bits &= bits - 1)
		next = least(
			next, now_ns + bounded(card->streams[lowest(bits)].lane.open.estimate_ns /
						       OPEN_PART,
					       OPEN_LEAST_NS, OPEN_MOST_NS));
	return next;
}

void markers_are_due(unsigned number)
{
	struct card_markers *card = &card_markers[number];

	spin_take(&accounts[number].lock);
	for (uint64_t live = card->live; live; live &= live - 1)
		for (uint8_t marker = card->streams[lowest(live)].first; marker != NO_MARKER;
			marker = card->markers[marker].next)
			card->markers[marker].look_ns = 0;
	spin_drop(&accounts[number].lock);
}

uint64_t markers_look(unsigned number)
{
	struct card_markers *card = &card_markers[number];
	struct account *account = &accounts[number];
	const uint64_t now_ns = clock_ns();

	spin_take(&account->lock);
	const bool was_idle = account_is_idle(account);
	const uint64_t ended = account->ended;
	uint64_t live = card->live, open = card->open;
	spin_drop(&account->lock);
	if (was_idle)
		return UINT64_MAX;
	for (; live; live &= live - 1)
		while (look_at(number, (uint8_t)lowest(live), now_ns) != LOOK_LATER)
			;
	for (; open; open &= open - 1)
		close_open(number, (uint8_t)lowest(open));

	spin_take(&account->lock);
	const uint64_t loose_ns = loose_look(number, now_ns);
	const bool has_progress = account->ended != ended, is_idle = account_is_idle(account);
	const uint64_t next = least(next_look(card, now_ns), loose_ns);
	spin_drop(&account->lock);
	if (has_progress)
		progress_tell(number, is_idle);
	return next;
}
