/* SPDX-License-Identifier: Apache-2.0
 *
 * Work whose end no event shows: it counts as finished when it should have finished, after
 * everything that was pending when it was submitted.
 */
#include "timing_event.h"

#include "share/clock.h"

/* A guess that is far too long must not keep a process busy forever. */
#define MOST_NS UINT64_C(100000000)

/* After a check that came too early. */
#define LOOK_AGAIN_NS UINT64_C(1000000)

static struct untimed_work *untimed_last(struct card_timing *card)
{
	return &card->untimed[(card->untimed_first + card->untimed_count - 1u) % UNTIMED_WORK];
}

uint64_t untimed_add(unsigned number, uint64_t estimate_ns, uint32_t pieces)
{
	struct card_timing *card = &card_timing[number];
	const uint64_t pending_ns = work_accounts[number].pending_ns;
	uint64_t end_ns = clock_ns() + (pending_ns < MOST_NS ? pending_ns : MOST_NS);

	if (card->untimed_count > 0 && untimed_last(card)->end_ns > end_ns)
		end_ns = untimed_last(card)->end_ns;
	/* If there are too many, the last one absorbs new work. */
	if (card->untimed_count < UNTIMED_WORK) {
		card->untimed_count++;
		*untimed_last(card) = (struct untimed_work){.pieces = 0};
	}
	struct untimed_work *last = untimed_last(card);
	last->estimate_ns += estimate_ns;
	last->pieces += pieces;
	last->end_ns = end_ns;
	last->behind = work_accounts[number].submitted - last->pieces;
	return end_ns;
}

uint64_t group_make_untimed(unsigned number, uint8_t stream)
{
	const struct group group = group_take(&card_timing[number], stream);

	return untimed_add(number, group.estimate_ns, group.pieces);
}

uint64_t untimed_look(unsigned number, uint64_t now_ns)
{
	struct card_timing *card = &card_timing[number];

	while (card->untimed_count > 0) {
		const struct untimed_work *first = &card->untimed[card->untimed_first];
		if (first->end_ns > now_ns)
			return first->end_ns;
		if (work_accounts[number].ended < first->behind)
			return now_ns + LOOK_AGAIN_NS;
		work_account_end(&work_accounts[number], first->pieces, first->estimate_ns,
			first->estimate_ns, now_ns);
		card->untimed_first = (uint8_t)((card->untimed_first + 1) % UNTIMED_WORK);
		card->untimed_count--;
	}
	return UINT64_MAX;
}
