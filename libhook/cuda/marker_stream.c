/* SPDX-License-Identifier: Apache-2.0 */
#include "marker.h"

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

uint8_t stream_find(struct card_markers *card, uint64_t key, CUcontext owner)
{
	const unsigned first = first_place(key);

	for (unsigned step = 0; step < MARKER_STREAMS; step++) {
		const unsigned place = (first + step) % MARKER_STREAMS;
		const struct marker_stream *stream = &card->streams[place];
		if (stream->key == key && stream->owner == owner)
			return (uint8_t)place;
	}
	return NO_STREAM;
}

static bool is_in_use(const struct card_markers *card, unsigned place)
{
	return card->streams[place].marking ||
	       ((card->live | card->open) & UINT64_C(1) << place) != 0;
}

uint8_t stream_place(struct card_markers *card, uint64_t key, CUcontext owner)
{
	const unsigned first = first_place(key);
	unsigned found = NO_STREAM;

	if (!card->ready)
		ready(card);
	for (unsigned step = 0; step < MARKER_STREAMS; step++) {
		const unsigned place = (first + step) % MARKER_STREAMS;
		if (card->streams[place].key == 0) {
			found = place;
			break;
		}
		if (found == NO_STREAM && !is_in_use(card, place))
			found = place; /* of one that has nothing to do; it may come again */
	}
	if (found == NO_STREAM)
		return NO_STREAM;
	struct marker_stream *stream = &card->streams[found];
	*stream = (struct marker_stream){.key = key,
		.owner = owner,
		.generation = stream->generation + 1,
		.first = NO_MARKER,
		.last = NO_MARKER,
		.context = NO_CONTEXT};
	return (uint8_t)found;
}

void stream_end(struct card_markers *card, uint8_t place)
{
	struct marker_stream *stream = &card->streams[place];

	*stream = (struct marker_stream){
		.generation = stream->generation + 1, .first = NO_MARKER, .last = NO_MARKER};
}

void group_add(struct group *group, uint16_t place, uint64_t estimate_ns)
{
	group->estimate_ns += estimate_ns;
	group->pieces++;
	for (unsigned part = group->parts; part-- > 0;) {
		if (group->part[part].place == place) {
			if (group->part[part].count < UINT16_MAX)
				group->part[part].count++;
			else
				group->has_more = true;
			return;
		}
	}
	if (group->parts == GROUP_PARTS) {
		group->has_more = true;
		return;
	}
	group->part[group->parts].place = place;
	group->part[group->parts++].count = 1;
}

void group_join(struct group *group, const struct group *more)
{
	group->estimate_ns += more->estimate_ns;
	group->pieces += more->pieces;
	group->has_more |= more->has_more || more->parts > 0;
}

struct group group_take(struct card_markers *card, uint8_t stream)
{
	struct group taken = card->streams[stream].open;

	card->streams[stream].open = (struct group){.pieces = 0};
	card->open &= ~(UINT64_C(1) << stream);
	return taken;
}

void group_give_back(struct card_markers *card, uint8_t stream, const struct group *group)
{
	struct group whole = *group;

	if (card->streams[stream].open.pieces > 0)
		group_join(&whole, &card->streams[stream].open);
	card->streams[stream].open = whole;
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

void loose_add(struct card_markers *card, const struct group *group, uint64_t now_ns)
{
	if (card->loose.pieces == 0 || card->loose_end_ns < now_ns)
		card->loose_end_ns = now_ns;
	card->loose_end_ns += group->estimate_ns;
	group_join(&card->loose, group);
}
