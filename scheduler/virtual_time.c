/* SPDX-License-Identifier: Apache-2.0 */
#include "virtual_time.h"

#include "credit.h"

void virtual_time_enter(struct card *card, struct tenant *tenant)
{
	unsigned at = CARD_TENANTS;

	for (unsigned i = 0; i < CARD_TENANTS; i++) {
		const struct virtual_time *virtual_time = &card->virtual_times[i];
		if (virtual_time->tenants && virtual_time->priority == tenant->share.priority)
			at = i;
	}
	for (unsigned i = 0; i < CARD_TENANTS && at == CARD_TENANTS; i++)
		if (!card->virtual_times[i].tenants)
			at = i;
	struct virtual_time *virtual_time = &card->virtual_times[at];
	if (!virtual_time->tenants)
		*virtual_time = (struct virtual_time){.priority = tenant->share.priority};
	virtual_time->tenants++;
	tenant->time_index = at;
	tenant->vt = virtual_time->vt;
	tenant->lag_ns = 0;
}

void virtual_time_leave(struct card *card, const struct tenant *tenant)
{
	card->virtual_times[tenant->time_index].tenants--;
}

/* Whether it would work now if it could, or only pauses between two units of work: only then does
 * it fall behind as others progress. When it last had work is known from this program's own
 * samples, not from its claims. */
static bool takes_part(const struct card *card, const struct tenant *tenant)
{
	if (tenant->share.online || tenant->stopped || tenant->gate.hung)
		return false;
	if (tenant->paused_ns &&
		elapsed(tenant->paused_ns, card->now_ns) > PATIENCE * card->time_scale)
		return false;
	return is_busy(tenant) || credit_suffices(card, tenant);
}

/* It may make up for a round that it was asleep for, and for having waited before, but not for all
 * the time in which it had no work. */
static void come_back(const struct card *card, struct tenant *tenant)
{
	const struct virtual_time *virtual_time = &card->virtual_times[tenant->time_index];
	int64_t lag_ns = card->round_ns / 4;

	tenant->slept = elapsed(tenant->left_ns, card->now_ns) > SLEEP * card->time_scale;
	if (!tenant->slept)
		lag_ns = most(lag_ns, tenant->lag_ns);
	tenant->vt = most(tenant->vt, virtual_time->vt - lag_ns);
	tenant->active = true;
}

static void leave(const struct card *card, struct tenant *tenant)
{
	tenant->lag_ns = most(card->virtual_times[tenant->time_index].vt - tenant->vt, 0);
	tenant->left_ns = card->now_ns;
	tenant->active = false;
}

/* It follows the tenant that is furthest behind, at most twice as fast as fair service would: a
 * tenant that is ahead (its work did not finish in time) is not forgiven at once while the others
 * pause. */
static void advance(struct card *card, unsigned at, int64_t passed_ns)
{
	struct virtual_time *virtual_time = &card->virtual_times[at];
	int64_t permille = 0, behind = INT64_MAX;

	FOR_EACH_TENANT (card, tenant) {
		if (tenant->time_index != at || tenant->share.online || !tenant->active)
			continue;
		permille += tenant->share.permille;
		behind = least(behind, tenant->vt);
	}
	if (permille)
		virtual_time->vt = least(virtual_time->vt + 2 * passed_ns * WHOLE / permille,
			most(virtual_time->vt, behind));
}

/* Keeps numbers small however long a card runs: only differences count. */
static void rebase(struct card *card, unsigned at)
{
	struct virtual_time *virtual_time = &card->virtual_times[at];
	const int64_t far = DEBT_MAX * card->time_scale;

	FOR_EACH_TENANT (card, tenant)
		if (tenant->time_index == at)
			tenant->vt = least(most(tenant->vt - virtual_time->vt, -far), far);
	virtual_time->vt = 0;
}

void virtual_times_advance(struct card *card, int64_t passed_ns)
{
	FOR_EACH_TENANT (card, tenant) {
		if (has_demand(tenant))
			tenant->paused_ns = 0;
		else if (!tenant->paused_ns)
			tenant->paused_ns = card->now_ns;
		if (tenant->active && !takes_part(card, tenant))
			leave(card, tenant);
	}
	for (unsigned at = 0; at < CARD_TENANTS; at++) {
		if (!card->virtual_times[at].tenants)
			continue;
		advance(card, at, passed_ns);
		rebase(card, at);
	}
	FOR_EACH_TENANT (card, tenant)
		if (!tenant->active && has_demand(tenant) && takes_part(card, tenant))
			come_back(card, tenant);
}
