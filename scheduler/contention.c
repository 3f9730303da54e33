/* SPDX-License-Identifier: Apache-2.0 */
#include "contention.h"

#include "credit.h"

/* Gangs, priorities, caps, the latency of online tenants and work that never ends need gates that
 * close. */
static bool may_be_open(const struct card *card, const struct tenant *tenant)
{
	return !tenant->share.online && !tenant->share.gang && !tenant->gate.hung &&
	       !tenant->stopped && credit_spare_ns(card, tenant) > 0;
}

static bool all_may_be_open(struct card *card)
{
	const struct tenant *first = NULL;

	FOR_EACH_TENANT (card, tenant) {
		if (!first)
			first = tenant;
		if (!may_be_open(card, tenant) || tenant->share.priority != first->share.priority)
			return false;
	}
	return card->registered > 1;
}

/* Tenants whose work meets on the card claim the time that they wait for each other as well. */
static int64_t claimed(struct card *card)
{
	int64_t ns = 0;

	FOR_EACH_TENANT (card, tenant)
		ns += tenant->claim_ns;
	return ns;
}

static bool is_contended(const struct card *card, int64_t period_ns)
{
	return card->claimed_ns > period_ns * CONTENDED / WHOLE;
}

static bool was_contended(const struct card *card)
{
	return card->contended_ns &&
	       elapsed(card->contended_ns, card->now_ns) < CONTENTION_AGAIN * card->time_scale;
}

static void decide(struct card *card, bool uncontended)
{
	if (card->uncontended && !uncontended)
		card->contended_ns = card->now_ns;
	card->uncontended = uncontended;
	card->measured_ns = card->claimed_ns = 0;
}

/* A launch at an open gate sends no wake-up: look again before much can have happened. What a
 * tenant uses while none of the others waits is not owed to them. */
static void watch(struct card *card)
{
	FOR_EACH_TENANT (card, tenant) {
		const int64_t ahead_ns =
			card->virtual_times[tenant->time_index].vt + card->round_ns / 4;

		tenant->vt = least(tenant->vt, ahead_ns);
		look_in(card, credit_spare_ns(card, tenant));
	}
	look_in(card, CONTENTION_PERIOD * card->time_scale - card->measured_ns);
}

void contention_look(struct card *card, int64_t passed_ns)
{
	const int64_t period_ns = CONTENTION_PERIOD * card->time_scale;

	card->measured_ns += passed_ns;
	card->claimed_ns += claimed(card);
	if (card->uncontended && (!all_may_be_open(card) || is_contended(card, period_ns)))
		decide(card, false);
	else if (card->measured_ns >= period_ns)
		/* While nothing happens, the gates are closed, so that a launch sends a wake-up. */
		decide(card, card->claimed_ns > 0 && all_may_be_open(card) &&
				     !is_contended(card, card->measured_ns) &&
				     !was_contended(card));
	if (card->uncontended)
		watch(card);
}
