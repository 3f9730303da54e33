/* SPDX-License-Identifier: Apache-2.0
 *
 * Work that no event tells the end of: it counts as ended when it should have, behind all that was
 * pending when it was given.
 */
#include "marker.h"

#include "share/clock.h"

/* A guess that is far too long must not keep a process busy for ever. */
#define MOST_NS UINT64_C(100000000)

/* After a time that was expected too early. */
#define LOOK_AGAIN_NS UINT64_C(1000000)

static struct loose *loose_last(struct card_markers *card)
{
	return &card->loose[(card->loose_first + card->loose_count - 1u) % LOOSE];
}

uint64_t loose_add(unsigned number, uint64_t estimate_ns, uint32_t pieces)
{
	struct card_markers *card = &card_markers[number];
	const uint64_t pending_ns = accounts[number].pending_ns;
	uint64_t end_ns = clock_ns() + (pending_ns < MOST_NS ? pending_ns : MOST_NS);

	if (card->loose_count > 0 && loose_last(card)->end_ns > end_ns)
		end_ns = loose_last(card)->end_ns;
	/* Where there are too many, the last one waits for those that come now. */
	if (card->loose_count < LOOSE) {
		card->loose_count++;
		*loose_last(card) = (struct loose){.pieces = 0};
	}
	struct loose *last = loose_last(card);
	last->estimate_ns += estimate_ns;
	last->pieces += pieces;
	last->end_ns = end_ns;
	last->behind = accounts[number].submitted - last->pieces;
	return end_ns;
}

uint64_t group_is_loose(unsigned number, uint8_t stream)
{
	const struct group group = group_take(&card_markers[number], stream);

	return loose_add(number, group.estimate_ns, group.pieces);
}

uint64_t loose_look(unsigned number, uint64_t now_ns)
{
	struct card_markers *card = &card_markers[number];

	while (card->loose_count > 0) {
		const struct loose *first = &card->loose[card->loose_first];
		if (first->end_ns > now_ns)
			return first->end_ns;
		if (accounts[number].ended < first->behind)
			return now_ns + LOOK_AGAIN_NS;
		account_end(&accounts[number], first->pieces, first->estimate_ns,
			first->estimate_ns, now_ns);
		card->loose_first = (uint8_t)((card->loose_first + 1) % LOOSE);
		card->loose_count--;
	}
	return UINT64_MAX;
}
