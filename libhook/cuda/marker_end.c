/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts that end, and waits, with work still counted.
 */
#include "marker_end.h"

#include "marker.h"
#include "quota/pages.h"
#include "share/clock.h"
#include "share/progress.h"

static bool is_meant(const struct marker_context *context, CUcontext handle)
{
	if (!context->handle)
		return false;
	return handle ? context->handle == handle : !context->is_created;
}

/* The meter may be in the middle of a call about what is about to end. */
static void let_meter_finish(void)
{
	if (meter_hold())
		pthread_mutex_unlock(&metering);
}

struct events {
	unsigned count;
	CUevent event[MARKER_EVENTS + MARKERS + 1];
};

static void take_event(struct events *taken, CUevent event)
{
	if (event)
		taken->event[taken->count++] = event;
}

/* All that a context has. With the lock. */
static void take_events(struct card_markers *card, uint8_t place, struct events *taken)
{
	struct marker_context *context = &card->contexts[place];

	taken->count = 0;
	while (context->spare_count > 0)
		take_event(taken, event_spare(context));
	take_event(taken, context->last);
	context->last = NULL;
	for (uint64_t live = card->live; live; live &= live - 1) {
		uint8_t marker = card->streams[__builtin_ctzll(live)].first;
		for (; marker != NO_MARKER; marker = card->markers[marker].next) {
			if (card->markers[marker].context != place)
				continue;
			take_event(taken, card->markers[marker].event);
			card->markers[marker].event = NULL;
		}
	}
}

static void events_give_back(unsigned number, uint8_t place, CUcontext handle)
{
	struct card_markers *card = &card_markers[number];
	struct events taken = {.count = 0};

	spin_take(&accounts[number].lock);
	if (card->contexts[place].is_ending && is_meant(&card->contexts[place], handle))
		take_events(card, place, &taken);
	spin_drop(&accounts[number].lock);
	for (unsigned i = 0; i < taken.count; i++)
		REAL(cuEventDestroy_v2)(taken.event[i]);
}

void markers_before_end(unsigned number, CUcontext handle, bool surely)
{
	struct card_markers *card = &card_markers[number];
	bool found = false;

	spin_take(&accounts[number].lock);
	for (unsigned place = 0; place < MARKER_CONTEXTS; place++) {
		if (!is_meant(&card->contexts[place], handle))
			continue;
		card->contexts[place].is_ending = true;
		found = true;
	}
	spin_drop(&accounts[number].lock);
	if (!found)
		return;
	let_meter_finish();
	for (unsigned place = 0; surely && place < MARKER_CONTEXTS; place++)
		events_give_back(number, (uint8_t)place, handle);
}

/* What was pending on a stream of a context has ended with that, or nobody can tell. */
static void forget_stream(unsigned number, uint8_t place, bool has_ended)
{
	struct card_markers *card = &card_markers[number];
	struct group all = group_take(card, place);

	while (card->streams[place].first != NO_MARKER) {
		group_join(&all, &card->markers[card->streams[place].first].group);
		marker_remove(card, place);
	}
	stream_end(card, place);
	if (all.pieces > 0 && has_ended)
		account_end(&accounts[number], all.pieces, all.estimate_ns, clock_ns(), clock_ns());
	else if (all.pieces > 0)
		loose_add(number, all.estimate_ns, all.pieces);
}

/* With its events. */
static void forget_context(unsigned number, uint8_t place, bool has_ended)
{
	struct card_markers *card = &card_markers[number];
	struct marker_context *context = &card->contexts[place];

	for (unsigned stream = 0; stream < MARKER_STREAMS; stream++)
		if (card->streams[stream].lane.key != 0 && card->streams[stream].context == place)
			forget_stream(number, (uint8_t)stream, has_ended);
	*context = (struct marker_context){.generation = context->generation + 1};
}

/* Whether its events were given back. */
static bool is_bare(const struct marker_context *context)
{
	return !context->last && context->spare_count == 0;
}

void markers_after_end(unsigned number, CUcontext handle, bool has_ended)
{
	struct card_markers *card = &card_markers[number];
	struct account *account = &accounts[number];

	spin_take(&account->lock);
	const uint64_t ended = account->ended;
	for (unsigned place = 0; place < MARKER_CONTEXTS; place++) {
		struct marker_context *context = &card->contexts[place];
		if (!context->is_ending || !is_meant(context, handle))
			continue;
		context->is_ending = false;
		if (has_ended || is_bare(context))
			forget_context(number, (uint8_t)place, has_ended);
	}
	const bool has_progress = account->ended != ended, is_idle = account_is_idle(account);
	spin_drop(&account->lock);
	if (has_progress)
		progress_tell(number, is_idle);
}

/* Of all streams: which of them the program waits for is its own affair. */
static void close_all(unsigned number)
{
	struct card_markers *card = &card_markers[number];

	spin_take(&accounts[number].lock);
	uint64_t open = card->open;
	spin_drop(&accounts[number].lock);
	for (; open; open &= open - 1) {
		const uint8_t place = (uint8_t)__builtin_ctzll(open);
		CUcontext context = NULL;
		spin_take(&accounts[number].lock);
		const struct marker_stream stream = card->streams[place];
		if (stream.lane.is_plain && stream.lane.open.pieces > 0 && stream.marking == 0 &&
			!card->contexts[stream.context].is_ending)
			context = card->contexts[stream.context].handle;
		spin_drop(&accounts[number].lock);
		if (context)
			marker_record_for(number, place, &stream, context);
	}
}

void markers_before_wait(void)
{
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	/* The meter, if that has it, will do it as well. */
	if (pthread_mutex_trylock(&metering) == 0) {
		for (unsigned card = 0; card < pages.card_count; card++)
			close_all(card);
		pthread_mutex_unlock(&metering);
	}
	pthread_setcancelstate(cancellation, NULL);
}
