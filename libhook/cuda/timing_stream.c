/* SPDX-License-Identifier: Apache-2.0 */
#include "timing_event.h"

struct card_timing card_timing[GPUSHARE_MAX_CARDS];

static void ready(struct card_timing *card)
{
	for (unsigned timing_event = 0; timing_event < TIMING_EVENTS; timing_event++)
		card->timing_events[timing_event].next = timing_event + 1 < TIMING_EVENTS
								 ? (uint8_t)(timing_event + 1)
								 : NO_TIMING_EVENT;
	card->free_timing_event = 0;
	card->ready = true;
}

static unsigned first_place(uint64_t key)
{
	return (unsigned)(key * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

uint8_t stream_find(const struct card_timing *card, uint64_t key)
{
	const unsigned first = first_place(key);

	for (unsigned step = 0; step < TIMING_STREAMS; step++) {
		const unsigned place = (first + step) % TIMING_STREAMS;
		if (card->streams[place].state.key == key)
			return (uint8_t)place;
	}
	return NO_STREAM;
}

bool stream_is_in_use(const struct card_timing *card, unsigned place)
{
	return card->streams[place].recording ||
	       ((card->live | card->open) & UINT64_C(1) << place) != 0;
}

static void stream_reset(struct card_timing *card, unsigned place)
{
	struct timing_stream *stream = &card->streams[place];

	*stream = (struct timing_stream){
		.state = {.generation = stream->state.generation + 1, .place = (uint8_t)place},
		.context = NO_CONTEXT,
		.first = NO_TIMING_EVENT,
		.last = NO_TIMING_EVENT};
}

uint8_t stream_place(struct card_timing *card, uint64_t key)
{
	const unsigned first = first_place(key);
	unsigned found = NO_STREAM;

	if (!card->ready)
		ready(card);
	for (unsigned step = 0; step < TIMING_STREAMS; step++) {
		const unsigned place = (first + step) % TIMING_STREAMS;
		if (card->streams[place].state.key == 0) {
			found = place;
			break;
		}
		if (found == NO_STREAM && !stream_is_in_use(card, place))
			found = place; /* of an idle stream, which may come again */
	}
	if (found == NO_STREAM)
		return NO_STREAM;
	stream_reset(card, found);
	card->streams[found].state.key = key;
	return (uint8_t)found;
}

void stream_end(struct card_timing *card, uint8_t place)
{
	stream_reset(card, place);
}

void group_join(struct group *group, const struct group *more)
{
	group->estimate_ns += more->estimate_ns;
	group->pieces += more->pieces;
	group->has_more |= more->has_more || more->parts > 0;
}

struct group group_take(struct card_timing *card, uint8_t stream)
{
	struct group taken = card->streams[stream].state.open;

	card->streams[stream].state.open = (struct group){.pieces = 0};
	card->open &= ~(UINT64_C(1) << stream);
	return taken;
}

uint8_t timing_event_take(struct card_timing *card)
{
	const uint8_t timing_event = card->ready ? card->free_timing_event : NO_TIMING_EVENT;

	if (timing_event != NO_TIMING_EVENT)
		card->free_timing_event = card->timing_events[timing_event].next;
	return timing_event;
}

void timing_event_give_back(struct card_timing *card, uint8_t timing_event)
{
	card->timing_events[timing_event].next = card->free_timing_event;
	card->free_timing_event = timing_event;
}

void timing_event_append(struct card_timing *card, uint8_t place, uint8_t timing_event)
{
	struct timing_stream *stream = &card->streams[place];

	card->timing_events[timing_event].next = NO_TIMING_EVENT;
	if (stream->first == NO_TIMING_EVENT)
		stream->first = timing_event;
	else
		card->timing_events[stream->last].next = timing_event;
	stream->last = timing_event;
	card->live |= UINT64_C(1) << place;
}

void timing_event_remove(struct card_timing *card, uint8_t place)
{
	struct timing_stream *stream = &card->streams[place];
	const uint8_t timing_event = stream->first;

	stream->first = card->timing_events[timing_event].next;
	if (stream->first == NO_TIMING_EVENT) {
		stream->last = NO_TIMING_EVENT;
		card->live &= ~(UINT64_C(1) << place);
	}
	timing_event_give_back(card, timing_event);
}
