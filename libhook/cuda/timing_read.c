/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds finished work. The oldest timing event of each stream is queried; when it has been reached,
 * the time between it and the last reached one, of any stream, is what the card took for the group.
 */
#include "timing_event.h"

#include "quota/pages.h"
#include "share/wakeup.h"
#include "share/clock.h"
#include "share/futex.h"
#include "share/progress.h"
#include "stream.h"

/* The time until the next check after one that came too early: a fraction of the time so far, and
 * of the time between two timing events. Until the end of a long unit of work is seen, the card
 * idles. */
#define AGAIN_PART 64
#define AGAIN_LEAST_PART 25
#define AGAIN_MOST_PART 2

enum look { LOOK_ENDED, LOOK_LATER, LOOK_DIFFERS };

/* A timing event and the event that its time is measured from, while the lock is not held. */
struct looked {
	uint8_t stream, timing_event;
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

/* The oldest of a stream, if it is due. With the lock. */
static enum look look_begin(
	struct card_timing *card, uint8_t place, uint64_t now_ns, struct looked *looked)
{
	const struct timing_stream *stream = &card->streams[place];

	if (stream->first == NO_TIMING_EVENT)
		return LOOK_LATER;
	const struct timing_event *timing_event = &card->timing_events[stream->first];
	const struct timing_context *context = &card->contexts[timing_event->context];
	if (timing_event->look_ns > now_ns || context->is_ending)
		return LOOK_LATER;
	*looked = (struct looked){.stream = place,
		.timing_event = stream->first,
		.generation = stream->state.generation,
		.context = context->handle,
		.event = timing_event->event,
		.last = context->last};
	return LOOK_ENDED;
}

static bool is_same(const struct card_timing *card, const struct looked *looked)
{
	const struct timing_stream *stream = &card->streams[looked->stream];

	return stream->state.generation == looked->generation &&
	       stream->first == looked->timing_event &&
	       card->timing_events[looked->timing_event].event == looked->event &&
	       card->contexts[card->timing_events[looked->timing_event].context].last ==
		       looked->last;
}

static void look_later(unsigned number, const struct looked *looked, uint64_t now_ns)
{
	struct card_timing *card = &card_timing[number];

	spinlock_lock(&work_accounts[number].lock);
	if (is_same(card, looked)) {
		struct timing_event *timing_event = &card->timing_events[looked->timing_event];
		timing_event->not_reached_ns = now_ns;
		const uint64_t timing_interval_ns =
			gate_timing_interval_ns(&grant_card(number)->gate);
		timing_event->look_ns =
			now_ns + bounded((now_ns - timing_event->recorded_ns) / AGAIN_PART,
					 timing_interval_ns / AGAIN_LEAST_PART,
					 timing_interval_ns / AGAIN_MOST_PART);
	}
	spinlock_unlock(&work_accounts[number].lock);
}

/* Not from a period that contained work whose end was not observed. */
static void learn(unsigned number, const struct group *group, uint64_t taken_ns, bool alone)
{
	struct work_account *account = &work_accounts[number];

	if (card_timing[number].untimed_count > 0)
		return;
	alone = alone && group->parts == 1 && !group->has_more;
	for (unsigned part = 0; part < group->parts; part++)
		estimate_learn(&account->estimates, group->part[part].place,
			group->part[part].count, group->estimate_ns, taken_ns, alone);
}

/* When on CLOCK_MONOTONIC the timing event was reached: the elapsed time after the last one. But
 * the two clocks drift apart, and a start is recorded before its turn. */
static uint64_t end_of(
	const struct timing_event *timing_event, uint64_t reckoned_ns, uint64_t now_ns)
{
	return bounded(reckoned_ns, least(timing_event->not_reached_ns, now_ns), now_ns);
}

/* The time between the last reached timing event and this one, as reported by the driver. */
struct elapsed {
	bool is_known;
	bool is_negative; /* the last one was reached later */
	uint64_t ns;
};

/* With a permanent error, everything has ended, and its time cannot be determined. */
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

/* Queried with the event's context current: cuda.h has no context error for cuEventQuery, but one
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

/* From now on, times are measured from this timing event. Returns an event to keep. */
static CUevent measure_from(
	struct timing_context *context, const struct timing_event *timing_event, uint64_t end_ns)
{
	CUevent before = context->last;

	context->last = timing_event->event;
	context->last_ns = end_ns;
	return before;
}

/* Process the group of a reached timing event. With the lock. Returns an event to keep. */
static CUevent group_ended(unsigned number, const struct timing_event *timing_event,
	const struct elapsed *elapsed, bool alone, uint64_t now_ns)
{
	struct card_timing *card = &card_timing[number];
	struct work_account *account = &work_accounts[number];
	struct timing_context *context = &card->contexts[timing_event->context];
	const struct group *group = &timing_event->group;

	/* Count the unmeasured time up to now as busy, including work that an open gate let pass.
	 */
	if (!elapsed->is_known || card->has_backlog) {
		if (elapsed->is_known)
			learn(number, group, elapsed->ns, false);
		card->has_backlog = false;
		work_account_end(account, group->pieces, group->estimate_ns, now_ns, now_ns);
		return measure_from(context, timing_event, now_ns);
	}
	if (elapsed->is_negative) { /* within the time that has been counted */
		work_account_end(account, group->pieces, group->estimate_ns, 0, account->since_ns);
		return timing_event->event;
	}
	const uint64_t end_ns = end_of(timing_event, context->last_ns + elapsed->ns, now_ns);
	const uint64_t counted_ns =
		work_account_end(account, group->pieces, group->estimate_ns, elapsed->ns, end_ns);
	if (counted_ns > 0 && group->parts == 1 && group->part[0].count > 0)
		estimate_learn_unknown(&account->estimates, group->part[0].place,
			counted_ns / group->part[0].count);
	if (counted_ns > 0)
		learn(number, group, counted_ns, alone);
	return measure_from(context, timing_event, end_ns);
}

/* Remove the oldest timing event, and bring the next check forward if this event was early. With
 * the lock. */
static CUevent timing_event_reached(
	unsigned number, const struct looked *looked, const struct elapsed *elapsed)
{
	struct card_timing *card = &card_timing[number];
	const struct timing_event timing_event = card->timing_events[looked->timing_event];
	const bool alone = (card->live & (card->live - 1)) == 0;
	const uint64_t now_ns = clock_ns();

	timing_event_remove(card, looked->stream);
	CUevent spare = group_ended(number, &timing_event, elapsed, alone, now_ns);
	const struct timing_stream *stream = &card->streams[looked->stream];
	if (stream->first != NO_TIMING_EVENT) {
		struct timing_event *next = &card->timing_events[stream->first];
		next->look_ns =
			least(next->look_ns, work_accounts[number].since_ns +
						     timing_first_look(&grant_card(number)->gate,
							     next->group.estimate_ns));
	}
	return spare;
}

static enum look look_at(unsigned number, uint8_t place, uint64_t now_ns)
{
	struct card_timing *card = &card_timing[number];
	struct work_account *account = &work_accounts[number];
	struct looked looked;

	spinlock_lock(&account->lock);
	const enum look due = look_begin(card, place, now_ns, &looked);
	spinlock_unlock(&account->lock);
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
	spinlock_lock(&account->lock);
	const bool same = is_same(card, &looked);
	if (same) {
		context = card->timing_events[looked.timing_event].context;
		generation = card->contexts[context].generation;
		spare = timing_event_reached(number, &looked, &elapsed);
	}
	spinlock_unlock(&account->lock);
	event_put(number, context, generation, spare);
	return same ? LOOK_ENDED : LOOK_DIFFERS;
}

/* Whether to close the open group of a stream that has not grown since the last check. With the
 * lock. */
static bool open_is_due(struct card_timing *card, uint8_t place)
{
	struct timing_stream *stream = &card->streams[place];
	const bool has_grown = stream->state.added != stream->added_seen;

	stream->added_seen = stream->state.added;
	return !has_grown && stream->recording == 0;
}

/* Another thread's stream: it may be capturing by now, and an event that is recorded then has no
 * time. */
static bool is_capturing(CUstream handle)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return REAL(cuStreamIsCapturing)(handle, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void timing_record_for(
	unsigned number, uint8_t place, const struct timing_stream *stream, CUcontext context)
{
	struct card_timing *card = &card_timing[number];

	const bool is_current = REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;

	if (is_current && !is_capturing(stream->handle)) {
		timing_record(number, place, stream->state.generation);
	} else {
		spinlock_lock(&work_accounts[number].lock);
		if (card->streams[place].state.generation == stream->state.generation)
			group_make_untimed(number, place);
		spinlock_unlock(&work_accounts[number].lock);
	}
	if (is_current)
		REAL(cuCtxPopCurrent_v2)(&context);
}

/* Work that no timing event will follow unless the meter records one. */
static void close_open(unsigned number, uint8_t place)
{
	struct card_timing *card = &card_timing[number];
	CUcontext context = NULL;

	spinlock_lock(&work_accounts[number].lock);
	if (card->streams[place].state.open.pieces > 0 && open_is_due(card, place)) {
		const struct timing_context *owner = &card->contexts[card->streams[place].context];
		if (!card->streams[place].state.is_plain)
			group_make_untimed(number, place);
		else if (!owner->is_ending)
			context = owner->handle;
	}
	const struct timing_stream stream = card->streams[place];
	spinlock_unlock(&work_accounts[number].lock);
	if (context)
		timing_record_for(number, place, &stream, context);
}

/* The thread that destroys a context checks it afterwards. */
static uint64_t look_of(
	const struct card_timing *card, const struct timing_event *timing_event, uint64_t now_ns)
{
	return card->contexts[timing_event->context].is_ending ? now_ns + LOOK_MOST_NS
							       : timing_event->look_ns;
}

/* When to check again. With the lock. */
static uint64_t next_look(const struct card_timing *card, uint64_t now_ns)
{
	uint64_t next = UINT64_MAX;

	for (uint64_t bits = card->live; bits; bits &= bits - 1)
		next = least(
			next, look_of(card, &card->timing_events[card->streams[lowest(bits)].first],
				      now_ns));
	/* While timing events are pending, their checks are soon enough. */
	for (uint64_t bits = card->live ? 0 : card->open; bits; bits &= bits - 1)
		next = least(next,
			now_ns +
				timing_open_ns(card->streams[lowest(bits)].state.open.estimate_ns));
	return next;
}

void timing_events_are_due(unsigned number)
{
	struct card_timing *card = &card_timing[number];

	spinlock_lock(&work_accounts[number].lock);
	for (uint64_t live = card->live; live; live &= live - 1)
		for (uint8_t timing_event = card->streams[lowest(live)].first;
			timing_event != NO_TIMING_EVENT;
			timing_event = card->timing_events[timing_event].next)
			card->timing_events[timing_event].look_ns = 0;
	spinlock_unlock(&work_accounts[number].lock);
}

uint64_t timing_look(unsigned number)
{
	struct card_timing *card = &card_timing[number];
	struct work_account *account = &work_accounts[number];
	const uint64_t now_ns = clock_ns();

	spinlock_lock(&account->lock);
	const bool was_idle = work_account_is_idle(account);
	const uint64_t ended = account->ended;
	uint64_t live = card->live, open = card->open;
	spinlock_unlock(&account->lock);
	if (was_idle)
		return UINT64_MAX;
	for (; live; live &= live - 1)
		while (look_at(number, (uint8_t)lowest(live), now_ns) != LOOK_LATER)
			;
	for (; open; open &= open - 1)
		close_open(number, (uint8_t)lowest(open));

	spinlock_lock(&account->lock);
	const uint64_t untimed_ns = untimed_look(number, now_ns);
	const bool has_progress = account->ended != ended, is_idle = work_account_is_idle(account);
	const uint64_t next = least(next_look(card, now_ns), untimed_ns);
	spinlock_unlock(&account->lock);
	if (has_progress)
		progress_report(number, is_idle);
	return next;
}
