/* SPDX-License-Identifier: Apache-2.0 */
#include "marker.h"

_Atomic unsigned gate_contexts;
struct card_markers card_markers[GPUSHARE_MAX_CARDS];

static void ready(struct card_markers *card)
{
	for (unsigned marker = 0; marker < MARKERS; marker++)
		card->markers[marker].next =
			marker + 1 < MARKERS ? (uint8_t)(marker + 1) : NO_MARKER;
	card->free_marker = 0;
	card->ready = true;
}

static unsigned first_place(uint64_t key)
{
	return (unsigned)(key * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

uint8_t stream_find(const struct card_markers *card, uint64_t key)
{
	const unsigned first = first_place(key);

	for (unsigned step = 0; step < MARKER_STREAMS; step++) {
		const unsigned place = (first + step) % MARKER_STREAMS;
		if (card->streams[place].lane.key == key)
			return (uint8_t)place;
	}
	return NO_STREAM;
}

static bool is_in_use(const struct card_markers *card, unsigned place)
{
	return card->streams[place].marking ||
	       ((card->live | card->open) & UINT64_C(1) << place) != 0;
}

static void stream_reset(struct card_markers *card, unsigned place)
{
	struct marker_stream *stream = &card->streams[place];

	*stream = (struct marker_stream){
		.lane = {.generation = stream->lane.generation + 1, .place = (uint8_t)place},
		.context = NO_CONTEXT,
		.first = NO_MARKER,
		.last = NO_MARKER};
}

uint8_t stream_place(struct card_markers *card, uint64_t key)
{
	const unsigned first = first_place(key);
	unsigned found = NO_STREAM;

	if (!card->ready)
		ready(card);
	for (unsigned step = 0; step < MARKER_STREAMS; step++) {
		const unsigned place = (first + step) % MARKER_STREAMS;
		if (card->streams[place].lane.key == 0) {
			found = place;
			break;
		}
		if (found == NO_STREAM && !is_in_use(card, place))
			found = place; /* of one that has nothing to do; it may come again */
	}
	if (found == NO_STREAM)
		return NO_STREAM;
	stream_reset(card, found);
	card->streams[found].lane.key = key;
	return (uint8_t)found;
}

void stream_end(struct card_markers *card, uint8_t place)
{
	stream_reset(card, place);
}

void group_join(struct group *group, const struct group *more)
{
	group->estimate_ns += more->estimate_ns;
	group->pieces += more->pieces;
	group->has_more |= more->has_more || more->parts > 0;
}

struct group group_take(struct card_markers *card, uint8_t stream)
{
	struct group taken = card->streams[stream].lane.open;

	card->streams[stream].lane.open = (struct group){.pieces = 0};
	card->open &= ~(UINT64_C(1) << stream);
	return taken;
}

void group_give_back(struct card_markers *card, uint8_t stream, const struct group *group)
{
	struct group whole = *group;

	if (card->streams[stream].lane.open.pieces > 0)
		group_join(&whole, &card->streams[stream].lane.open);
	card->streams[stream].lane.open = whole;
	card->open |= UINT64_C(1) << stream;
}

uint8_t marker_take(struct card_markers *card)
{
	const uint8_t marker = card->ready ? card->free_marker : NO_MARKER;

	if (marker != NO_MARKER)
		card->free_marker = card->markers[marker].next;
	return marker;
}

void marker_give_back(struct card_markers *card, uint8_t marker)
{
	card->markers[marker].next = card->free_marker;
	card->free_marker = marker;
}

void marker_append(struct card_markers *card, uint8_t place, uint8_t marker)
{
	struct marker_stream *stream = &card->streams[place];

	card->markers[marker].next = NO_MARKER;
	if (stream->first == NO_MARKER)
		stream->first = marker;
	else
		card->markers[stream->last].next = marker;
	stream->last = marker;
	card->live |= UINT64_C(1) << place;
}

void marker_remove(struct card_markers *card, uint8_t place)
{
	struct marker_stream *stream = &card->streams[place];
	const uint8_t marker = stream->first;

	stream->first = card->markers[marker].next;
	if (stream->first == NO_MARKER) {
		stream->last = NO_MARKER;
		card->live &= ~(UINT64_C(1) << place);
	}
	marker_give_back(card, marker);
}
