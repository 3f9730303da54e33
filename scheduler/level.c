/* SPDX-License-Identifier: Apache-2.0 */
#include "level.h"

#include "credit.h"

void level_enter(struct card *card, struct tenant *tenant)
{
	unsigned at = CARD_TENANTS;

	for (unsigned i = 0; i < CARD_TENANTS; i++) {
		const struct level *level = &card->levels[i];
		if (level->tenants && level->priority == tenant->share.priority)
			at = i;
	}
	for (unsigned i = 0; i < CARD_TENANTS && at == CARD_TENANTS; i++)
		if (!card->levels[i].tenants)
			at = i;
	struct level *level = &card->levels[at];
	if (!level->tenants)
		*level = (struct level){.priority = tenant->share.priority};
	level->tenants++;
	tenant->level = at;
	tenant->vt = level->vt;
	tenant->lag_ns = 0;
}

void level_leave(struct card *card, const struct tenant *tenant)
{
	card->levels[tenant->level].tenants--;
}

/* Whether it would work now if it were let, or pauses between two pieces: only then others'
 * progress makes it fall behind. When it wanted something last is known by our own looks, not by
 * its word. */
static bool takes_part(const struct card *card, const struct tenant *tenant)
{
	if (tenant->share.online || tenant->stopped || tenant->gate.hung)
		return false;
	if (tenant->paused_ns && elapsed(tenant->paused_ns, card->now_ns) > PATIENCE * card->slow)
		return false;
	return is_busy(tenant) || credit_suffices(card, tenant);
}

/* It may make up for a round that it slept through, and for what it was kept waiting before: not
 * for all the time in which it wanted nothing. */
static void come_back(const struct card *card, struct tenant *tenant)
{
	const struct level *level = &card->levels[tenant->level];
	int64_t lag_ns = card->round_ns / 4;

	tenant->slept = elapsed(tenant->left_ns, card->now_ns) > SLEEP * card->slow;
	if (!tenant->slept)
		lag_ns = most(lag_ns, tenant->lag_ns);
	tenant->vt = most(tenant->vt, level->vt - lag_ns);
	tenant->active = true;
}

static void leave(const struct card *card, struct tenant *tenant)
{
	tenant->lag_ns = most(card->levels[tenant->level].vt - tenant->vt, 0);
	tenant->left_ns = card->now_ns;
	tenant->active = false;
}

/* It follows who is furthest behind, and no faster than twice what fair service would bring it: who
 * runs ahead (its work did not end in time) is not forgiven at once while the others pause. */
static void advance(struct card *card, unsigned at, int64_t passed_ns)
{
	struct level *level = &card->levels[at];
	int64_t permille = 0, behind = INT64_MAX;

	FOR_EACH_TENANT (card, tenant) {
		if (tenant->level != at || tenant->share.online || !tenant->active)
			continue;
		permille += tenant->share.permille;
		behind = least(behind, tenant->vt);
	}
	if (permille)
		level->vt = least(
			level->vt + 2 * passed_ns * WHOLE / permille, most(level->vt, behind));
}

/* Figures stay small however long a card runs: only differences count. */
static void rebase(struct card *card, unsigned at)
{
	struct level *level = &card->levels[at];
	const int64_t far = DEBT_MAX * card->slow;

	FOR_EACH_TENANT (card, tenant)
		if (tenant->level == at)
			tenant->vt = least(most(tenant->vt - level->vt, -far), far);
	level->vt = 0;
}

void levels_advance(struct card *card, int64_t passed_ns)
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
		if (!card->levels[at].tenants)
			continue;
		advance(card, at, passed_ns);
		rebase(card, at);
	}
	FOR_EACH_TENANT (card, tenant)
		if (!tenant->active && has_demand(tenant) && takes_part(card, tenant))
			come_back(card, tenant);
}
