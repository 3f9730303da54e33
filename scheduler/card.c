/* SPDX-License-Identifier: Apache-2.0 */
#include "card.h"

#include "card_state.h"
#include "charge.h"
#include "contention.h"
#include "credit.h"
#include "lending.h"
#include "virtual_time.h"
#include "pick.h"
#include "progress.h"
#include "window.h"

#include <stdlib.h>
#include <string.h>

struct card *card_new(uint32_t time_scale, uint32_t switch_ns)
{
	struct card *card = calloc(1, sizeof(*card));

	if (!card)
		return NULL;
	card->time_scale = most(1, least(time_scale, TIME_SCALE_MAX));
	card->holder = -1;
	card->switch_ns = switch_ns;
	return card;
}

void card_free(struct card *card)
{
	free(card);
}

static struct share share_within(const struct share *requested)
{
	struct share share = *requested;

	share.permille = (uint32_t)most(1, least(share.permille, WHOLE));
	share.correction_permille = (int32_t)most(-WHOLE, least(share.correction_permille, WHOLE));
	return share;
}

/* Values that depend on all registered tenants. */
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
	card->round_ns = card->time_scale *
			 least(most(WINDOW_LEAST * WHOLE / permille, ROUND_LEAST), ROUND_MOST);
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
			.corrected_ns = now_ns,
			.gate.mode = GPUSHARE_GATE_CLOSED,
		};
		if (!card->registered && now_ns > card->now_ns)
			card->now_ns = now_ns; /* earlier time is not charged */
		virtual_time_enter(card, tenant);
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

	if (!tenant)
		return;
	const struct share before = tenant->share;
	tenant->share = share_within(share);
	tenant->corrected_ns = now_ns;
	if (tenant->share.priority != before.priority) {
		virtual_time_leave(card, tenant);
		virtual_time_enter(card, tenant);
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
	virtual_time_leave(card, tenant);
	if (card->holder == number)
		window_withhold(card);
	memset(tenant, 0, sizeof(*tenant));
	count(card);
}

/* A time claimed by the tenant, which cannot be in the future. */
static uint64_t past(uint64_t said_ns, uint64_t now_ns)
{
	return said_ns && said_ns < now_ns ? said_ns : now_ns;
}

/* The library forces a launch that has waited for wait_max_ns, even at a closed gate: one of each
 * thread that waits, as far as that claim is believed. Samples are a little late, so counting
 * begins again after 7/8 of that time. */
static bool may_be_forced(struct tenant *tenant, const struct seen *before)
{
	const struct seen *now = &tenant->seen;
	const uint64_t launches = now->submitted - before->submitted;
	const int64_t threads = most(least(before->waiting, FORCED_MOST), 1);

	if (now->at_ns >= tenant->forced_ns) {
		const uint64_t wait_ns = tenant->gate.wait_max_ns;

		tenant->forced_ns = now->at_ns + wait_ns - wait_ns / 8;
		tenant->forced = 0;
	}
	if (launches > (uint64_t)(threads - least(tenant->forced, threads)))
		return false;
	tenant->forced += (int64_t)launches;
	return true;
}

/* Whether it submits at a gate that was closed before the last sample. A launch that passed just
 * before that is counted a moment later. A process that takes this scheduler for dead limits
 * itself, and may submit. */
static bool submits_ungated(
	const struct card *card, struct tenant *tenant, const struct seen *before)
{
	return tenant->closed_ns && tenant->seen.submitted != before->submitted &&
	       elapsed(tenant->closed_ns, before->at_ns) > SLEEP * card->time_scale &&
	       elapsed(before->at_ns, tenant->seen.at_ns) <= (int64_t)GPUSHARE_GATE_STALE_NS &&
	       !may_be_forced(tenant, before);
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
	if (now.pending_ns > (uint64_t)(PENDING_MAX * card->time_scale))
		now.pending_ns = (uint64_t)(PENDING_MAX * card->time_scale);
	now.idle_ns = now.contexts ? 0 : past(now.idle_ns, now.at_ns);
	if (now.contexts > tenant->contexts)
		tenant->contexts = now.contexts;
	if (now.submitted != before.submitted || !before.waiting != !now.waiting)
		tenant->stopped = false;
	if (now.submitted != before.submitted)
		tenant->paused_ns = 0; /* it may have worked since, and paused again */
	/* If the tenant does not report when work finished, a change of its figures shows it. */
	if (now.contexts && now.progress_ns)
		tenant->progress_ns = past(now.progress_ns, now.at_ns);
	else if (!now.contexts || !before.contexts || now.pending_ns < before.pending_ns)
		tenant->progress_ns = now.at_ns;
	tenant->seen = now;
	lending_see(tenant, &before);
	tenant->ungated |= submits_ungated(card, tenant, &before);
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
		} else if (tenant->seen.idle_ns && idle_ns < IDLE * card->time_scale &&
			   tenant->seen.submitted) {
			look_in(card, IDLE * card->time_scale - idle_ns);
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
	return has_window || tenant->guest || card->uncontended || tenant->through ||
			       window_is_probe(card, tenant)
		       ? GPUSHARE_GATE_WINDOW
		       : GPUSHARE_GATE_CLOSED;
}

/* An honest debt may take longer than the bound to earn back. In multiples of the bound, so that
 * the gate is not rewritten all the time. */
static uint64_t wait_max_of(const struct card *card, const struct tenant *tenant)
{
	const int64_t bound_ns = WAIT_MAX * card->time_scale;
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
	if (gate->mode != GPUSHARE_GATE_CLOSED) {
		tenant->closed_ns = 0;
		tenant->ungated = false;
	} else if (!tenant->closed_ns) {
		tenant->closed_ns = card->now_ns;
	}
	gate->in_flight_max_ns = (uint64_t)(in_flight * card->time_scale);
	gate->timing_interval_ns = (uint64_t)(TIMING_INTERVAL * card->time_scale);
	gate->wait_max_ns = wait_max_of(card, tenant);
	gate->self_throttle_permille = gate->mode == GPUSHARE_GATE_OPEN || tenant->share.online
					       ? 0
					       : tenant->share.permille;
	gate->pieces_min = card->has_online || !is_short || tenant->guest ? 1 : 2;
	if (tenant->guest)
		gate->in_flight_max_ns =
			(uint64_t)least(tenant->pause_ns, GUEST_IN_FLIGHT * card->time_scale);
}

uint64_t card_decide(struct card *card, uint64_t now_ns)
{
	const int64_t passed_ns = elapsed(card->now_ns, now_ns);

	if (now_ns > card->now_ns)
		card->now_ns = now_ns;
	card->look_ns = UINT64_MAX;
	charge(card, passed_ns);
	progress_find_hung(card);
	virtual_times_advance(card, passed_ns);
	contention_look(card, passed_ns);
	if (card->uncontended || online_works(card))
		window_withhold(card);
	else
		window_turn(card);
	lending_look(card);
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
