/* SPDX-License-Identifier: Apache-2.0 */
#include "card.h"

#include "card_state.h"
#include "charge.h"
#include "credit.h"
#include "level.h"
#include "pick.h"
#include "progress.h"
#include "window.h"

#include <stdlib.h>
#include <string.h>

struct card *card_new(uint32_t slow)
{
	struct card *card = calloc(1, sizeof(*card));

	if (!card)
		return NULL;
	card->slow = most(1, least(slow, SLOW_MAX));
	card->holder = -1;
	return card;
}

void card_free(struct card *card)
{
	free(card);
}

static struct share share_within(const struct share *asked)
{
	struct share share = *asked;

	share.permille = (uint32_t)most(1, least(share.permille, WHOLE));
	return share;
}

/* What follows from who is registered. */
static void count(struct card *card)
{
	int64_t permille = WHOLE;

	card->registered = 0;
	card->has_online = false;
	FOR_EACH_TENANT (card, tenant) {
		card->registered++;
		card->has_online |= tenant->share.online;
		if (!tenant->share.online)
			permille = least(permille, tenant->share.permille);
	}
	card->round_ns =
		card->slow * least(most(WINDOW_LEAST * WHOLE / permille, ROUND_LEAST), ROUND_MOST);
}

int card_add(struct card *card, const struct share *share, uint64_t now_ns)
{
	for (int i = 0; i < CARD_TENANTS; i++) {
		struct tenant *tenant = &card->tenants[i];
		if (tenant->used)
			continue;
		*tenant = (struct tenant){
			.used = true,
			.share = share_within(share),
			.contexts = 1,
			.progress_ns = now_ns,
			.left_ns = now_ns,
			.gate.mode = GPUSHARE_GATE_CLOSED,
		};
		if (!card->registered && now_ns > card->now_ns)
			card->now_ns = now_ns; /* what was before is nobody's */
		level_enter(card, tenant);
		count(card);
		credit_begin(card, tenant);
		return i;
	}
	return -1;
}

static struct tenant *tenant_of(struct card *card, int number)
{
	if (number < 0 || number >= CARD_TENANTS || !card->tenants[number].used)
		return NULL;
	return &card->tenants[number];
}

void card_change(struct card *card, int number, const struct share *share, uint64_t now_ns)
{
	struct tenant *tenant = tenant_of(card, number);

	(void)now_ns;
	if (!tenant)
		return;
	const struct share before = tenant->share;
	tenant->share = share_within(share);
	if (tenant->share.priority != before.priority) {
		level_leave(card, tenant);
		level_enter(card, tenant);
	}
	count(card);
	if (tenant->share.capped && !before.capped)
		credit_begin(card, tenant);
	if (tenant->share.online && card->holder == number)
		window_withhold(card);
}

void card_remove(struct card *card, int number, uint64_t now_ns)
{
	struct tenant *tenant = tenant_of(card, number);

	(void)now_ns;
	if (!tenant)
		return;
	level_leave(card, tenant);
	if (card->holder == number)
		window_withhold(card);
	memset(tenant, 0, sizeof(*tenant));
	count(card);
}

/* A time that the tenant says, which cannot be one to come. */
static uint64_t past(uint64_t said_ns, uint64_t now_ns)
{
	return said_ns && said_ns < now_ns ? said_ns : now_ns;
}

void card_see(struct card *card, int number, const struct seen *seen)
{
	struct tenant *tenant = tenant_of(card, number);

	if (!tenant)
		return;
	const struct seen before = tenant->seen;
	struct seen now = *seen;

	now.contexts = (uint32_t)least(now.contexts, GPUSHARE_MAX_PROCESSES);
	if (!now.contexts)
		now.pending_ns = 0;
	if (now.pending_ns > (uint64_t)(PENDING_MAX * card->slow))
		now.pending_ns = (uint64_t)(PENDING_MAX * card->slow);
	now.idle_ns = now.contexts ? 0 : past(now.idle_ns, now.at_ns);
	if (now.contexts > tenant->contexts)
		tenant->contexts = now.contexts;
	if (now.submitted != before.submitted || !before.waiting != !now.waiting)
		tenant->stopped = false;
	if (now.submitted != before.submitted)
		tenant->paused_ns = 0; /* it may have worked since, and paused again */
	/* Where it is not told when something ended, what it says changes when something does. */
	if (now.contexts && now.progress_ns)
		tenant->progress_ns = past(now.progress_ns, now.at_ns);
	else if (!now.contexts || !before.contexts || now.pending_ns < before.pending_ns)
		tenant->progress_ns = now.at_ns;
	tenant->seen = now;
}

static bool online_works(struct card *card)
{
	bool works = false;

	FOR_EACH_TENANT (card, tenant) {
		if (!tenant->share.online)
			continue;
		const int64_t idle_ns = elapsed(tenant->seen.idle_ns, card->now_ns);
		if (has_demand(tenant)) {
			works = true;
		} else if (tenant->seen.idle_ns && idle_ns < IDLE * card->slow &&
			   tenant->seen.submitted) {
			look_in(card, IDLE * card->slow - idle_ns);
			works = true;
		}
	}
	return works;
}

static uint32_t mode_of(struct card *card, const struct tenant *tenant)
{
	const bool has_window = card->holder == tenant - card->tenants && !card->closing;

	if (card->registered == 1 && (tenant->share.online || !tenant->share.capped))
		return GPUSHARE_GATE_OPEN;
	if (tenant->share.online)
		return GPUSHARE_GATE_METERED;
	return has_window || tenant->through || window_is_probe(card, tenant)
		       ? GPUSHARE_GATE_WINDOW
		       : GPUSHARE_GATE_CLOSED;
}

/* A debt that is honest may take longer to earn back than the bound; in whole bounds, so that the
 * gate is not written anew all the time. */
static uint64_t wait_max_of(const struct card *card, const struct tenant *tenant)
{
	const int64_t bound_ns = WAIT_MAX * card->slow;
	int64_t wait_ns = most(tenant->vt, 0);

	if (tenant->share.capped)
		wait_ns = most(wait_ns, credit_wait_ns(card, tenant));
	return (uint64_t)(bound_ns * (1 + (wait_ns + bound_ns / 2) / bound_ns));
}

static void write_gate(struct card *card, struct tenant *tenant)
{
	struct gate *gate = &tenant->gate;
	const int64_t in_flight = card->has_online ? IN_FLIGHT_ONLINE : IN_FLIGHT;
	const bool is_short = 2 * tenant->piece_ns <= window_of(card, tenant);

	if (gate->mode == GPUSHARE_GATE_OPEN)
		tenant->open_ns = card->now_ns;
	gate->mode = mode_of(card, tenant);
	gate->in_flight_max_ns = (uint64_t)(in_flight * card->slow);
	gate->marker_ns = (uint64_t)(MARKER * card->slow);
	gate->wait_max_ns = wait_max_of(card, tenant);
	gate->alone_permille = gate->mode == GPUSHARE_GATE_OPEN || tenant->share.online
				       ? 0
				       : tenant->share.permille;
	gate->pieces_min = card->has_online || !is_short ? 1 : 2;
}

uint64_t card_decide(struct card *card, uint64_t now_ns)
{
	const int64_t passed_ns = elapsed(card->now_ns, now_ns);

	if (now_ns > card->now_ns)
		card->now_ns = now_ns;
	card->look_ns = UINT64_MAX;
	charge(card, passed_ns);
	progress_find_hung(card);
	levels_advance(card, passed_ns);
	if (online_works(card))
		window_withhold(card);
	else
		window_turn(card);
	window_look_for_gangs(card);
	pick_look(card);
	FOR_EACH_TENANT (card, tenant)
		write_gate(card, tenant);
	return card->look_ns;
}

const struct gate *card_gate(const struct card *card, int number)
{
	static const struct gate none;

	if (number < 0 || number >= CARD_TENANTS)
		return &none;
	return &card->tenants[number].gate;
}
