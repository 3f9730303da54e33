/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy that can be foreseen, in the place of scheduler/card.c: of the tenants that work or
 * wait, the one that was charged least for its part has the window, for 20 ms at most, and the
 * others' gates are closed. A tenant that is alone and not capped has an open gate.
 */
#include "card.h"
#include "gang.h"

#include <stdlib.h>

#define WINDOW_NS UINT64_C(20000000)

struct tenant {
	bool there;
	struct share share;
	struct seen seen;
	struct gate gate;
};

struct card {
	struct tenant tenants[CARD_TENANTS];
	int holder, preferred;
	uint64_t until_ns, decided_ns;
	uint32_t time_scale;
};

struct card *card_new(uint32_t time_scale)
{
	struct card *card = calloc(1, sizeof(*card));
	if (card) {
		card->holder = card->preferred = -1;
		card->time_scale = time_scale;
	}
	return card;
}

void card_free(struct card *card)
{
	free(card);
}

int card_add(struct card *card, const struct share *share, uint64_t now_ns)
{
	(void)now_ns;
	for (int number = 0; number < CARD_TENANTS; number++) {
		if (card->tenants[number].there)
			continue;
		card->tenants[number] = (struct tenant){.there = true, .share = *share};
		return number;
	}
	return -1;
}

void card_change(struct card *card, int tenant, const struct share *share, uint64_t now_ns)
{
	(void)now_ns;
	card->tenants[tenant].share = *share;
}

void card_remove(struct card *card, int tenant, uint64_t now_ns)
{
	(void)now_ns;
	card->tenants[tenant].there = false;
	if (card->holder == tenant)
		card->holder = -1;
}

void card_see(struct card *card, int tenant, const struct seen *seen)
{
	card->tenants[tenant].seen = *seen;
}

static bool wants(const struct tenant *tenant)
{
	return tenant->there && (tenant->seen.waiting || tenant->seen.contexts);
}

static int next_holder(const struct card *card)
{
	uint64_t least = UINT64_MAX;
	int next = -1;

	if (card->preferred >= 0 && wants(&card->tenants[card->preferred]))
		return card->preferred;
	for (int number = 0; number < CARD_TENANTS; number++) {
		const struct tenant *tenant = &card->tenants[number];
		uint64_t used = wants(tenant) ? tenant->gate.charged_ns / tenant->share.permille
					      : UINT64_MAX;
		if (used < least) {
			least = used;
			next = number;
		}
	}
	return next;
}

static void write_gates(struct card *card, bool alone)
{
	for (int number = 0; number < CARD_TENANTS; number++) {
		struct tenant *tenant = &card->tenants[number];
		struct gate *gate = &tenant->gate;

		gate->mode = alone && !tenant->share.capped ? GPUSHARE_GATE_OPEN
			     : number == card->holder	    ? GPUSHARE_GATE_WINDOW
							    : GPUSHARE_GATE_CLOSED;
		gate->in_flight_max_ns = 2000000 * (uint64_t)card->time_scale;
		gate->timing_interval_ns = 500000 * (uint64_t)card->time_scale;
		gate->wait_max_ns = UINT64_C(1000000000) * card->time_scale;
		gate->self_throttle_permille = tenant->share.permille;
		gate->pieces_min = 2;
	}
}

uint64_t card_decide(struct card *card, uint64_t now_ns)
{
	int count = 0;

	for (int number = 0; number < CARD_TENANTS; number++)
		count += card->tenants[number].there;
	if (card->holder >= 0)
		card->tenants[card->holder].gate.charged_ns += now_ns - card->decided_ns;
	card->decided_ns = now_ns;
	if (card->holder < 0 || now_ns >= card->until_ns || !wants(&card->tenants[card->holder])) {
		card->holder = next_holder(card);
		card->preferred = -1;
		card->until_ns = now_ns + WINDOW_NS * card->time_scale;
		if (card->holder >= 0)
			card->tenants[card->holder].gate.windows++;
	}
	write_gates(card, count == 1);
	return card->holder < 0 ? UINT64_MAX : card->until_ns;
}

const struct gate *card_gate(const struct card *card, int tenant)
{
	return &card->tenants[tenant].gate;
}

/* Where the first has the window, the others are to have it next. */
uint32_t gang_align(const struct gang_place *places, uint32_t count)
{
	uint32_t changed = 0;

	for (uint32_t at = 1; at < count; at++) {
		struct card *card = places[at].card;
		if (places[0].card->holder != places[0].tenant ||
			card->holder == places[at].tenant || card->preferred == places[at].tenant)
			continue;
		card->preferred = places[at].tenant;
		card->until_ns = 0;
		changed |= UINT32_C(1) << at;
	}
	return changed;
}
