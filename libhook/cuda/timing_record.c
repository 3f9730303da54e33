/* SPDX-License-Identifier: Apache-2.0 */
#include "timing_event.h"

#include "context.h"
#include "quota/pages.h"
#include "share/clock.h"

/* Identifies the calling thread's default stream by its address. */
static _Thread_local char own_stream;

/* No stream address is odd, or even and not a multiple of four. */
uint64_t timing_default_stream(const struct gate_work *work)
{
	CUcontext current = NULL;

	if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		current = NULL;
	if (gate_is_legacy_stream(work))
		return (uintptr_t)current | 1;
	const uint64_t mixed = (uintptr_t)current * UINT64_C(0x9e3779b97f4a7c15);
	return ((mixed ^ (uintptr_t)&own_stream) & ~UINT64_C(3)) | 2;
}

/* The handle of the stream, valid for every function. */
static CUstream handle_of(const struct gate_work *work)
{
	if (!gate_is_default_stream(work))
		return work->stream;
	return gate_is_legacy_stream(work) ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
}

static struct timing_stream *stream_of(const struct gate_work *work)
{
	return &card_timing[work->card].streams[work->stream_place];
}

static bool is_here(const struct gate_work *work)
{
	return work->stream_place != NO_STREAM &&
	       stream_of(work)->state.generation == work->generation;
}

static void set_place(struct gate_work *work, uint8_t place)
{
	work->stream_place = place;
	if (place != NO_STREAM)
		work->generation = card_timing[work->card].streams[place].state.generation;
}

bool timing_find_stream(struct gate_work *work)
{
	struct card_timing *card = &card_timing[work->card];
	const uint8_t place = stream_find(card, work->key);

	set_place(work, place);
	if (place != NO_STREAM)
		work_accounts[work->card].stream = &card->streams[place].state;
	return place != NO_STREAM;
}

bool timing_has_stream(const struct gate_work *work)
{
	return is_here(work);
}

bool timing_is_open(const struct gate_work *work)
{
	return is_here(work) && stream_of(work)->state.open.pieces > 0;
}

/* Streams on which only the submitting thread may record a timing event, and at once. */
static bool records_each(const struct timing_stream *stream)
{
	return stream->per_thread ||
	       (stream->handle == CU_STREAM_LEGACY && atomic_load(&timing_blocking_streams));
}

bool timing_add_stream(struct gate_work *work)
{
	struct card_timing *card = &card_timing[work->card];
	CUstream stream = handle_of(work);
	CUcontext current = NULL;

	if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current) {
		work->stream_place = NO_STREAM;
		return false;
	}
	const bool is_created = context_is_created(current);
	if (stream == CU_STREAM_PER_THREAD)
		timing_note_blocking_stream();
	context_make_room(work->card, current);
	spinlock_lock(&work_accounts[work->card].lock);
	uint8_t place = stream_find(card, work->key);
	const uint8_t context =
		place == NO_STREAM ? context_place(card, current, is_created) : NO_CONTEXT;
	if (context != NO_CONTEXT)
		place = stream_place(card, work->key);
	if (context != NO_CONTEXT && place != NO_STREAM) {
		struct timing_stream *made = &card->streams[place];
		made->handle = stream;
		made->per_thread = stream == CU_STREAM_PER_THREAD;
		made->context = context;
		made->state.is_plain = !records_each(made);
	}
	set_place(work, place);
	spinlock_unlock(&work_accounts[work->card].lock);
	return true;
}

void timing_add_work(struct gate_work *work, uint64_t timing_interval_ns, bool was_idle)
{
	struct card_timing *card = &card_timing[work->card];

	work->timing = 0;
	if (was_idle)
		card->has_backlog = work_accounts[work->card].may_have_been_open;
	if (!is_here(work) || stream_of(work)->is_untimed) {
		untimed_add(work->card, work->estimate_ns, 1);
		work->timing = TIMING_WATCH;
		return;
	}
	struct timing_stream *stream = stream_of(work);
	const bool is_known = work_accounts[work->card].estimates.place[work->place].samples > 0;
	group_add(&stream->state.open, work->place, work->estimate_ns);
	stream->state.open.is_guess |= !is_known;
	stream->state.added++;
	card->open |= UINT64_C(1) << work->stream_place;
	if (was_idle)
		work->timing = TIMING_START;
	/* The first of a busy period has a timing event of its own, unless the program is expected
	 * to wait, which records one. */
	if ((was_idle && (card->has_backlog || !meter_is_spared())) || !is_known ||
		stream->state.open.estimate_ns >= timing_interval_ns || records_each(stream)) {
		work->timing |= TIMING_AFTER;
		stream->recording++;
	}
}

/* Also removed from the group's parts: work that did not run must not be learned from. */
static void group_withdraw(struct group *group, const struct gate_work *work)
{
	group->pieces--;
	group->estimate_ns -=
		work->estimate_ns < group->estimate_ns ? work->estimate_ns : group->estimate_ns;
	for (unsigned part = 0; part < group->parts; part++)
		if (group->part[part].place == work->place && group->part[part].count > 0)
			group->part[part].count--;
}

bool timing_take_back(struct gate_work *work)
{
	struct card_timing *card = &card_timing[work->card];

	if (!is_here(work))
		return false;
	struct timing_stream *stream = stream_of(work);
	if (work->timing & TIMING_AFTER)
		stream->recording--;
	work->timing = 0;
	if (stream->is_untimed || stream->state.open.pieces == 0)
		return false;
	group_withdraw(&stream->state.open, work);
	if (stream->state.open.pieces == 0)
		group_take(card, work->stream_place);
	return true;
}

/* The context that provides events for the work's stream, and its generation. */
static uint8_t context_of(const struct gate_work *work, uint32_t *generation)
{
	struct card_timing *card = &card_timing[work->card];

	spinlock_lock(&work_accounts[work->card].lock);
	const uint8_t place = is_here(work) ? stream_of(work)->context : NO_CONTEXT;
	if (place != NO_CONTEXT)
		*generation = card->contexts[place].generation;
	spinlock_unlock(&work_accounts[work->card].lock);
	return place;
}

/* The start of the measurement: after everything else on the stream. */
static void record_start(const struct gate_work *work)
{
	struct card_timing *card = &card_timing[work->card];
	uint32_t generation;
	const uint8_t place = context_of(work, &generation);

	if (place == NO_CONTEXT)
		return;
	CUevent event = event_get(work->card, place);
	if (event && REAL(cuEventRecord)(event, handle_of(work)) == CUDA_SUCCESS) {
		struct timing_context *context = &card->contexts[place];
		spinlock_lock(&work_accounts[work->card].lock);
		if (context->generation == generation) {
			CUevent before = context->last;
			context->last = event;
			context->last_ns = work_accounts[work->card].since_ns;
			event = before;
		}
		spinlock_unlock(&work_accounts[work->card].lock);
	}
	event_put(work->card, place, generation, event);
}

void timing_before(const struct gate_work *work)
{
	if (work->timing & TIMING_START)
		record_start(work);
}

/* The end of these cannot be observed: they count for as long as estimated. */
static void record_failed(unsigned card, const struct group *group)
{
	spinlock_lock(&work_accounts[card].lock);
	const uint64_t end_ns = untimed_add(card, group->estimate_ns, group->pieces);
	spinlock_unlock(&work_accounts[card].lock);
	meter_watch(end_ns);
}

/* Everything pending comes first. An estimate may be far too long, so the first check is
 * earlier. */
static uint64_t expected_ns(
	const struct gpushare_gate *gate, uint64_t pending_ns, const struct group *group)
{
	uint64_t ns = pending_ns > group->estimate_ns ? pending_ns - group->estimate_ns : 0;

	if (!group->is_guess)
		ns += timing_first_look(gate, pending_ns - ns);
	return ns < LOOK_MOST_NS ? ns : LOOK_MOST_NS;
}

static void record_done(unsigned card_number, uint8_t place, uint32_t generation,
	const struct timing_event *recorded, uint32_t context_generation)
{
	struct card_timing *card = &card_timing[card_number];
	struct work_account *account = &work_accounts[card_number];
	const uint64_t now_ns = clock_ns();

	spinlock_lock(&account->lock);
	const uint8_t timing_event = timing_event_take(card);
	const bool is_here = timing_event != NO_TIMING_EVENT &&
			     card->streams[place].state.generation == generation &&
			     card->contexts[recorded->context].generation == context_generation;
	const uint64_t look_ns = now_ns + expected_ns(&grant_card(card_number)->gate,
						  account->pending_ns, &recorded->group);
	if (is_here) {
		card->timing_events[timing_event] = *recorded;
		card->timing_events[timing_event].recorded_ns = now_ns;
		card->timing_events[timing_event].not_reached_ns = now_ns;
		card->timing_events[timing_event].look_ns = look_ns;
		timing_event_append(card, place, timing_event);
	} else if (timing_event != NO_TIMING_EVENT) {
		timing_event_give_back(card, timing_event);
	}
	spinlock_unlock(&account->lock);
	if (is_here) {
		meter_watch(look_ns);
		return;
	}
	event_put(card_number, recorded->context, context_generation, recorded->event);
	record_failed(card_number, &recorded->group);
}

void timing_record(unsigned card_number, uint8_t place, uint32_t generation)
{
	struct card_timing *card = &card_timing[card_number];
	struct timing_stream *stream = &card->streams[place];
	struct timing_event recorded = {.event = NULL};

	spinlock_lock(&work_accounts[card_number].lock);
	if (stream->state.generation != generation || stream->state.open.pieces == 0 ||
		stream->is_untimed || (card->ready && card->free_timing_event == NO_TIMING_EVENT)) {
		/* If there are too many timing events, its work waits for the next one. */
		spinlock_unlock(&work_accounts[card_number].lock);
		return;
	}
	recorded.group = group_take(card, place);
	recorded.context = stream->context;
	CUstream handle = stream->handle;
	const uint32_t context_generation = card->contexts[stream->context].generation;
	spinlock_unlock(&work_accounts[card_number].lock);

	recorded.event = event_get(card_number, recorded.context);
	if (recorded.event && REAL(cuEventRecord)(recorded.event, handle) == CUDA_SUCCESS) {
		record_done(card_number, place, generation, &recorded, context_generation);
		return;
	}
	event_put(card_number, recorded.context, context_generation, recorded.event);
	spinlock_lock(&work_accounts[card_number].lock);
	if (stream->state.generation == generation) {
		stream->state.is_plain = false;
		stream->is_untimed = true;
	}
	spinlock_unlock(&work_accounts[card_number].lock);
	record_failed(card_number, &recorded.group);
}

void timing_after(const struct gate_work *work)
{
	struct work_account *account = &work_accounts[work->card];

	if (work->timing & TIMING_WATCH)
		meter_watch(clock_ns() + work->estimate_ns);
	if (!(work->timing & TIMING_AFTER))
		return;
	timing_record(work->card, work->stream_place, work->generation);
	spinlock_lock(&account->lock);
	if (is_here(work))
		stream_of(work)->recording--;
	spinlock_unlock(&account->lock);
}

void timing_close(const struct gate_work *work)
{
	timing_record(work->card, work->stream_place, work->generation);
	meter_hurry();
}
