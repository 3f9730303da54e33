/* SPDX-License-Identifier: Apache-2.0 */
#include "marker.h"

#include "context.h"
#include "quota/pages.h"
#include "share/clock.h"

/* A name for the calling thread's default stream: its address. */
static _Thread_local char own_stream;

/* No address of a stream is odd, or even and no multiple of four. */
uint64_t markers_default_stream(const struct gate_work *work)
{
	CUcontext current = NULL;

	if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		current = NULL;
	if (gate_is_legacy_stream(work))
		return (uintptr_t)current | 1;
	const uint64_t mixed = (uintptr_t)current * UINT64_C(0x9e3779b97f4a7c15);
	return ((mixed ^ (uintptr_t)&own_stream) & ~UINT64_C(3)) | 2;
}

/* The stream, whatever function it is handed to. */
static CUstream handle_of(const struct gate_work *work)
{
	if (!gate_is_default_stream(work))
		return work->stream;
	return gate_is_legacy_stream(work) ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
}

static struct marker_stream *stream_of(const struct gate_work *work)
{
	return &card_markers[work->card].streams[work->stream_place];
}

static bool is_here(const struct gate_work *work)
{
	return work->stream_place != NO_STREAM &&
	       stream_of(work)->lane.generation == work->generation;
}

static void set_place(struct gate_work *work, uint8_t place)
{
	work->stream_place = place;
	if (place != NO_STREAM)
		work->generation = card_markers[work->card].streams[place].lane.generation;
}

bool markers_know(struct gate_work *work)
{
	struct card_markers *card = &card_markers[work->card];
	const uint8_t place = stream_find(card, work->key);

	set_place(work, place);
	if (place != NO_STREAM)
		accounts[work->card].lane = &card->streams[place].lane;
	return place != NO_STREAM;
}

bool markers_are_open(const struct gate_work *work)
{
	return is_here(work) && stream_of(work)->lane.open.pieces > 0;
}

/* Where nobody but the thread that gives it work may record a marker, or later than at once. */
static bool marks_each(const struct marker_stream *stream)
{
	return stream->per_thread ||
	       (stream->handle == CU_STREAM_LEGACY && atomic_load(&marker_blocking_streams));
}

void markers_meet(struct gate_work *work)
{
	struct card_markers *card = &card_markers[work->card];
	CUstream stream = handle_of(work);
	CUcontext current = NULL;

	if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current) {
		work->stream_place = NO_STREAM;
		return;
	}
	const bool is_created = context_is_created(current);
	if (stream == CU_STREAM_PER_THREAD)
		marker_meet_blocking_stream();
	spin_take(&accounts[work->card].lock);
	uint8_t place = stream_find(card, work->key);
	if (place == NO_STREAM) {
		place = stream_place(card, work->key);
		if (place != NO_STREAM) {
			struct marker_stream *made = &card->streams[place];
			made->handle = stream;
			made->per_thread = stream == CU_STREAM_PER_THREAD;
			made->context = context_place(card, current, is_created);
			made->is_loose = made->context == NO_CONTEXT;
			made->lane.is_plain = !made->is_loose && !marks_each(made);
		}
	}
	set_place(work, place);
	spin_drop(&accounts[work->card].lock);
}

void markers_add(struct gate_work *work, uint64_t marker_ns, bool was_idle)
{
	struct card_markers *card = &card_markers[work->card];

	work->marks = 0;
	if (was_idle)
		card->has_backlog = accounts[work->card].may_have_been_open;
	if (!is_here(work) || stream_of(work)->is_loose) {
		loose_add(work->card, work->estimate_ns, 1);
		work->marks = MARK_WATCH;
		return;
	}
	struct marker_stream *stream = stream_of(work);
	const bool is_known = accounts[work->card].estimates.place[work->place].samples > 0;
	group_add(&stream->lane.open, work->place, work->estimate_ns);
	stream->lane.open.is_guess |= !is_known;
	stream->lane.added++;
	card->open |= UINT64_C(1) << work->stream_place;
	if (was_idle || !is_known || stream->lane.open.estimate_ns >= marker_ns ||
		marks_each(stream)) {
		work->marks = was_idle ? MARK_START | MARK_AFTER : MARK_AFTER;
		stream->marking++;
	}
}

/* Out of the group's list, too: what did not run is not to be learned from. */
static void group_withdraw(struct group *group, const struct gate_work *work)
{
	group->pieces--;
	group->estimate_ns -=
		work->estimate_ns < group->estimate_ns ? work->estimate_ns : group->estimate_ns;
	for (unsigned part = 0; part < group->parts; part++)
		if (group->part[part].place == work->place && group->part[part].count > 0)
			group->part[part].count--;
}

bool markers_take_back(struct gate_work *work)
{
	struct card_markers *card = &card_markers[work->card];

	if (!is_here(work))
		return false;
	struct marker_stream *stream = stream_of(work);
	if (work->marks & MARK_AFTER)
		stream->marking--;
	work->marks = 0;
	if (stream->is_loose || stream->lane.open.pieces == 0)
		return false;
	group_withdraw(&stream->lane.open, work);
	if (stream->lane.open.pieces == 0)
		group_take(card, work->stream_place);
	return true;
}

/* The context whose events the work's stream takes, and which one that is. */
static uint8_t context_of(const struct gate_work *work, uint32_t *generation)
{
	struct card_markers *card = &card_markers[work->card];

	spin_take(&accounts[work->card].lock);
	const uint8_t place = is_here(work) ? stream_of(work)->context : NO_CONTEXT;
	if (place != NO_CONTEXT)
		*generation = card->contexts[place].generation;
	spin_drop(&accounts[work->card].lock);
	return place;
}

/* Where the card's time is measured from: behind whatever else is on the stream. */
static void record_start(const struct gate_work *work)
{
	struct card_markers *card = &card_markers[work->card];
	uint32_t generation;
	const uint8_t place = context_of(work, &generation);

	if (place == NO_CONTEXT)
		return;
	CUevent event = event_get(work->card, place);
	if (event && REAL(cuEventRecord)(event, handle_of(work)) == CUDA_SUCCESS) {
		struct marker_context *context = &card->contexts[place];
		spin_take(&accounts[work->card].lock);
		if (context->generation == generation) {
			CUevent before = context->last;
			context->last = event;
			context->last_ns = accounts[work->card].since_ns;
			event = before;
		}
		spin_drop(&accounts[work->card].lock);
	}
	event_put(work->card, place, generation, event);
}

void markers_before(const struct gate_work *work)
{
	if (work->marks & MARK_START)
		record_start(work);
}

/* Nothing will tell when these end: as long as they were expected to take. */
static void record_failed(unsigned card, const struct group *group)
{
	spin_take(&accounts[card].lock);
	const uint64_t end_ns = loose_add(card, group->estimate_ns, group->pieces);
	spin_drop(&accounts[card].lock);
	meter_watch(end_ns);
}

/* All that is pending comes first. An estimate may be far too long: we look before, too. */
static uint64_t expected_ns(
	const struct gpushare_gate *gate, uint64_t pending_ns, const struct group *group)
{
	uint64_t ns = pending_ns > group->estimate_ns ? pending_ns - group->estimate_ns : 0;

	if (!group->is_guess)
		ns += marker_first_look(gate, pending_ns - ns);
	return ns < LOOK_MOST_NS ? ns : LOOK_MOST_NS;
}

static void record_done(unsigned card_number, uint8_t place, uint32_t generation,
	const struct marker *recorded, uint32_t context_generation)
{
	struct card_markers *card = &card_markers[card_number];
	struct account *account = &accounts[card_number];
	const uint64_t now_ns = clock_ns();

	spin_take(&account->lock);
	const uint8_t marker = marker_take(card);
	const bool is_here = marker != NO_MARKER &&
			     card->streams[place].lane.generation == generation &&
			     card->contexts[recorded->context].generation == context_generation;
	const uint64_t look_ns = now_ns + expected_ns(&grant_card(card_number)->gate,
						  account->pending_ns, &recorded->group);
	if (is_here) {
		card->markers[marker] = *recorded;
		card->markers[marker].recorded_ns = now_ns;
		card->markers[marker].not_reached_ns = now_ns;
		card->markers[marker].look_ns = look_ns;
		marker_append(card, place, marker);
	} else if (marker != NO_MARKER) {
		marker_give_back(card, marker);
	}
	spin_drop(&account->lock);
	if (is_here) {
		meter_watch(look_ns);
		return;
	}
	event_put(card_number, recorded->context, context_generation, recorded->event);
	record_failed(card_number, &recorded->group);
}

void marker_record(unsigned card_number, uint8_t place, uint32_t generation)
{
	struct card_markers *card = &card_markers[card_number];
	struct marker_stream *stream = &card->streams[place];
	struct marker recorded = {.event = NULL};

	spin_take(&accounts[card_number].lock);
	if (stream->lane.generation != generation || stream->lane.open.pieces == 0 ||
		stream->is_loose || (card->ready && card->free_marker == NO_MARKER)) {
		/* Its pieces wait for the next one where there are too many markers already. */
		spin_drop(&accounts[card_number].lock);
		return;
	}
	recorded.group = group_take(card, place);
	recorded.context = stream->context;
	CUstream handle = stream->handle;
	const uint32_t context_generation = card->contexts[stream->context].generation;
	spin_drop(&accounts[card_number].lock);

	recorded.event = event_get(card_number, recorded.context);
	if (recorded.event && REAL(cuEventRecord)(recorded.event, handle) == CUDA_SUCCESS) {
		record_done(card_number, place, generation, &recorded, context_generation);
		return;
	}
	event_put(card_number, recorded.context, context_generation, recorded.event);
	spin_take(&accounts[card_number].lock);
	if (stream->lane.generation == generation) {
		stream->lane.is_plain = false;
		stream->is_loose = true;
	}
	spin_drop(&accounts[card_number].lock);
	record_failed(card_number, &recorded.group);
}

void markers_after(const struct gate_work *work)
{
	struct account *account = &accounts[work->card];

	if (work->marks & MARK_WATCH)
		meter_watch(clock_ns() + work->estimate_ns);
	if (!(work->marks & MARK_AFTER))
		return;
	marker_record(work->card, work->stream_place, work->generation);
	spin_take(&account->lock);
	if (is_here(work))
		stream_of(work)->marking--;
	spin_drop(&account->lock);
}

void markers_close(const struct gate_work *work)
{
	marker_record(work->card, work->stream_place, work->generation);
}
