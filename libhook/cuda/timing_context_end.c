/* SPDX-License-Identifier: Apache-2.0
 *
 * Destroyed contexts, and waits, while work is still counted.
 */
#include "timing_context_end.h"

#include "timing_event.h"
#include "quota/pages.h"
#include "share/clock.h"
#include "share/progress.h"

/* How long a launch takes, and how much longer the first of a busy period if it wakes the meter. */
#define LAUNCH_NS UINT64_C(5000)
#define WAKE_NS UINT64_C(80000)

static bool is_meant(const struct timing_context *context, CUcontext handle)
{
	if (!context->handle)
		return false;
	return handle ? context->handle == handle : !context->is_created;
}

/* The meter may be in the middle of a call about the context. */
static void let_meter_finish(void)
{
	if (meter_hold())
		pthread_mutex_unlock(&metering);
}

struct events {
	unsigned count;
	CUevent event[SPARE_EVENTS + TIMING_EVENTS + 1];
};

static void take_event(struct events *taken, CUevent event)
{
	if (event)
		taken->event[taken->count++] = event;
}

/* All events of a context. With the lock. */
static void take_events(struct card_timing *card, uint8_t place, struct events *taken)
{
	struct timing_context *context = &card->contexts[place];

	taken->count = 0;
	while (context->spare_count > 0)
		take_event(taken, event_spare(context));
	take_event(taken, context->last);
	context->last = NULL;
	for (uint64_t live = card->live; live; live &= live - 1) {
		uint8_t timing_event = card->streams[__builtin_ctzll(live)].first;
		for (; timing_event != NO_TIMING_EVENT;
			timing_event = card->timing_events[timing_event].next) {
			if (card->timing_events[timing_event].context != place)
				continue;
			take_event(taken, card->timing_events[timing_event].event);
			card->timing_events[timing_event].event = NULL;
		}
	}
}

static void events_give_back(unsigned number, uint8_t place, CUcontext handle)
{
	struct card_timing *card = &card_timing[number];
	struct events taken = {.count = 0};

	spinlock_lock(&work_accounts[number].lock);
	if (card->contexts[place].is_ending && is_meant(&card->contexts[place], handle))
		take_events(card, place, &taken);
	spinlock_unlock(&work_accounts[number].lock);
	for (unsigned i = 0; i < taken.count; i++)
		REAL(cuEventDestroy_v2)(taken.event[i]);
}

void timing_before_context_end(unsigned number, CUcontext handle, bool surely)
{
	struct card_timing *card = &card_timing[number];
	bool found = false;

	spinlock_lock(&work_accounts[number].lock);
	for (unsigned place = 0; place < TIMING_CONTEXTS; place++) {
		if (!is_meant(&card->contexts[place], handle))
			continue;
		card->contexts[place].is_ending = true;
		found = true;
	}
	spinlock_unlock(&work_accounts[number].lock);
	if (!found)
		return;
	let_meter_finish();
	for (unsigned place = 0; surely && place < TIMING_CONTEXTS; place++)
		events_give_back(number, (uint8_t)place, handle);
}

/* The pending work of a context's stream has ended with the context, or its end cannot be
 * observed. */
static void forget_stream(unsigned number, uint8_t place, bool has_ended)
{
	struct card_timing *card = &card_timing[number];
	struct group all = group_take(card, place);

	while (card->streams[place].first != NO_TIMING_EVENT) {
		group_join(&all, &card->timing_events[card->streams[place].first].group);
		timing_event_remove(card, place);
	}
	stream_end(card, place);
	if (all.pieces > 0 && has_ended)
		work_account_end(&work_accounts[number], all.pieces, all.estimate_ns, clock_ns(),
			clock_ns());
	else if (all.pieces > 0)
		untimed_add(number, all.estimate_ns, all.pieces);
}

/* With its events. */
static void forget_context(unsigned number, uint8_t place, bool has_ended)
{
	struct card_timing *card = &card_timing[number];
	struct timing_context *context = &card->contexts[place];

	for (unsigned stream = 0; stream < TIMING_STREAMS; stream++)
		if (card->streams[stream].state.key != 0 && card->streams[stream].context == place)
			forget_stream(number, (uint8_t)stream, has_ended);
	*context = (struct timing_context){.generation = context->generation + 1};
}

/* Whether its events were given back. */
static bool is_bare(const struct timing_context *context)
{
	return !context->last && context->spare_count == 0;
}

void timing_after_context_end(unsigned number, CUcontext handle, bool has_ended)
{
	struct card_timing *card = &card_timing[number];
	struct work_account *account = &work_accounts[number];

	spinlock_lock(&account->lock);
	const uint64_t ended = account->ended;
	for (unsigned place = 0; place < TIMING_CONTEXTS; place++) {
		struct timing_context *context = &card->contexts[place];
		if (!context->is_ending || !is_meant(context, handle))
			continue;
		context->is_ending = false;
		if (has_ended || is_bare(context))
			forget_context(number, (uint8_t)place, has_ended);
	}
	const bool has_progress = account->ended != ended, is_idle = work_account_is_idle(account);
	spinlock_unlock(&account->lock);
	if (has_progress)
		progress_report(number, is_idle);
}

/* Later than the meter would have recorded a timing event, the card may have been idle for long
 * before that of the wait: charged time that it was not busy. With the lock. */
static enum timing_wait wait_of(const struct work_account *account)
{
	const uint64_t pieces = account->submitted - account->ended;

	if (pieces == 0)
		return WAIT_OTHER;
	const uint64_t limit_ns = timing_open_ns(account->pending_ns) + pieces * LAUNCH_NS +
				  (meter_is_spared() ? 0 : WAKE_NS);
	return clock_ns() < account->since_ns + limit_ns ? WAIT_PROMPT : WAIT_LATE;
}

/* For all streams: it is not known which of them the program waits for. */
static enum timing_wait close_all(unsigned number)
{
	struct card_timing *card = &card_timing[number];

	spinlock_lock(&work_accounts[number].lock);
	const enum timing_wait wait = wait_of(&work_accounts[number]);
	uint64_t open = card->open;
	spinlock_unlock(&work_accounts[number].lock);
	for (; open; open &= open - 1) {
		const uint8_t place = (uint8_t)__builtin_ctzll(open);
		CUcontext context = NULL;
		spinlock_lock(&work_accounts[number].lock);
		const struct timing_stream stream = card->streams[place];
		if (stream.state.is_plain && stream.state.open.pieces > 0 &&
			stream.recording == 0 && !card->contexts[stream.context].is_ending)
			context = card->contexts[stream.context].handle;
		spinlock_unlock(&work_accounts[number].lock);
		if (context)
			timing_record_for(number, place, &stream, context);
	}
	return wait;
}

enum timing_wait timing_before_wait(void)
{
	enum timing_wait wait = WAIT_OTHER;
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	/* If the meter thread holds the lock, it will do so as well. */
	if (pthread_mutex_trylock(&metering) == 0) {
		for (unsigned card = 0; card < pages.card_count; card++) {
			const enum timing_wait here = close_all(card);
			wait = here > wait ? here : wait;
		}
		pthread_mutex_unlock(&metering);
	}
	pthread_setcancelstate(cancellation, NULL);
	return wait;
}
