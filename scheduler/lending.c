/* SPDX-License-Identifier: Apache-2.0 */
#include "lending.h"

#define UNITS_MOST 65536 /* that a tenant submits from one decision to the next */

static int64_t mean(int64_t before, int64_t now, int64_t weight)
{
	return before ? before + (now - before) / weight : now;
}

/* From the end of its work to the next launch, as far as it was seen in between. */
void lending_see(struct tenant *tenant, const struct seen *before)
{
	const struct seen *now = &tenant->seen;

	if (before->contexts || before->waiting || !before->idle_ns || !has_demand(tenant))
		return;
	tenant->pause_ns = mean(tenant->pause_ns,
		elapsed(before->idle_ns, now->contexts ? tenant->progress_ns : now->at_ns), 8);
}

/* Whether it pauses for twice as long as a switch back to it takes, and this program's reaction.
 * Until a tenant was measured, it is taken for one that pauses. One that is at the host for most of
 * the time would keep the others from the card; a cap is kept more exactly by measured time. */
static bool pauses(const struct card *card, const struct tenant *tenant)
{
	const int64_t worth_ns = 2 * (card->switch_ns + REACTION) * card->time_scale;
	const bool measured = tenant->unit_ns && elapsed(tenant->learned_ns, card->now_ns) <
							 LEARN_AGAIN * card->time_scale;

	return !tenant->share.capped && tenant->pause_ns > worth_ns &&
	       tenant->pause_ns < PATIENCE * card->time_scale &&
	       most(tenant->unit_ns, tenant->piece_ns) < IN_FLIGHT * card->time_scale &&
	       (!measured || (tenant->unit_ns * WHOLE <= tenant->turn_ns * BUSY &&
				     tenant->unit_ns * WHOLE >= tenant->turn_ns * BUSY_LEAST));
}

bool lending_is_worth(struct card *card, const struct tenant *holder)
{
	if (card->has_online || holder->share.gang || card->now_ns < card->lend_after_ns ||
		!pauses(card, holder))
		return false;
	FOR_EACH_TENANT (card, tenant)
		if (tenant->active && !pauses(card, tenant))
			return false;
	return true;
}

bool lending_is_due(const struct card *card, const struct tenant *tenant)
{
	return tenant->estimated &&
	       elapsed(tenant->learned_ns, card->now_ns) > LEARN_EVERY * card->time_scale;
}

static void estimate(struct tenant *tenant)
{
	if (!tenant->estimated)
		tenant->counted = tenant->seen.submitted;
	tenant->estimated = true;
}

/* Whether there is a tenant that could be a guest. */
static bool has_guests(struct card *card, const struct tenant *holder)
{
	FOR_EACH_TENANT (card, tenant)
		if (tenant != holder && tenant->active && tenant->unit_ns)
			return true;
	return false;
}

/* Less work than the holder does alone: the units are not what they were. */
static void judge(struct card *card, struct tenant *holder)
{
	if (card->lent_ns < LENT_LEAST * card->time_scale)
		return;
	if (card->lent_work_ns * WHOLE / card->lent_ns <
		holder->unit_ns * WHOLE / holder->turn_ns * 7 / 8) {
		card->lend_after_ns = card->now_ns + (uint64_t)(SECOND * card->time_scale);
		lending_begin(card, holder);
	}
	card->lent_ns = card->lent_work_ns = 0;
}

void lending_begin(struct card *card, struct tenant *holder)
{
	lending_end(card);
	card->lent = holder->unit_ns && !lending_is_due(card, holder) &&
		     lending_is_worth(card, holder) && has_guests(card, holder);
	if (card->lent)
		estimate(holder);
}

static int64_t units_of(const struct tenant *tenant)
{
	return (int64_t)((tenant->seen.submitted - tenant->learn_submitted) % UNITS_MOST);
}

/* Work in which it was never seen to pause: so much of it, and it does not. */
static void add_busy(struct card *card, struct tenant *tenant)
{
	if (!tenant->learn_ns || !tenant->learn_busy)
		return;
	tenant->busy_units += units_of(tenant);
	if (tenant->busy_units < LEARN_MOST)
		return;
	tenant->unit_ns = tenant->turn_ns = most(tenant->piece_ns, 1);
	tenant->learned_ns = card->now_ns;
	tenant->busy_units = 0;
}

void lending_end(struct card *card)
{
	card->lent = false;
	FOR_EACH_TENANT (card, tenant) {
		add_busy(card, tenant);
		tenant->learn_ns = 0;
	}
}

static void learned(struct card *card, struct tenant *holder)
{
	const int64_t units = holder->learn_units;

	holder->unit_ns = mean(holder->unit_ns, most(holder->learn_work_ns / units, 1), 4);
	holder->turn_ns = mean(holder->turn_ns, most(holder->learn_turn_ns / units, 1), 4);
	holder->learned_ns = card->now_ns;
	holder->learn_units = holder->learn_work_ns = holder->learn_turn_ns = 0;
	holder->busy_units = 0;
	lending_begin(card, holder);
}

/* From one pause to another, in one window or in several. */
static void learn(struct card *card, struct tenant *holder)
{
	const bool busy = is_busy(holder);

	if (holder->learn_ns ? busy && units_of(holder) < LEARN_MOST
			     : !busy && holder->seen.submitted == holder->submitted)
		return;
	if (busy) {
		add_busy(card, holder);
	} else if (holder->learn_ns && !holder->learn_busy) {
		holder->learn_units += units_of(holder);
		holder->learn_work_ns += elapsed(holder->learn_busy_ns, holder->seen.busy_ns);
		holder->learn_turn_ns += elapsed(holder->learn_ns, card->now_ns);
	}
	holder->learn_ns = card->now_ns;
	holder->learn_busy = busy;
	holder->learn_busy_ns = holder->seen.busy_ns;
	holder->learn_submitted = holder->seen.submitted;
	if (!busy) {
		holder->estimated = false;
		holder->owed_ns = 0;
	}
	if (holder->learn_units >= LEARN_UNITS)
		learned(card, holder);
}

static bool may_be_guest(const struct tenant *holder, const struct tenant *tenant, int64_t ahead_ns)
{
	return tenant != holder && tenant->active && !tenant->share.gang && !tenant->gate.hung &&
	       tenant->share.priority == holder->share.priority && tenant->unit_ns &&
	       !tenant->share.capped && tenant->vt - holder->vt < ahead_ns;
}

static struct tenant *next_guest(struct card *card, const struct tenant *holder)
{
	struct tenant *next = NULL;

	FOR_EACH_TENANT (card, tenant)
		if (!tenant->guest && may_be_guest(holder, tenant, card->round_ns / 4) &&
			(!next || tenant->vt < next->vt))
			next = tenant;
	return next;
}

/* One that is half a round ahead waits until it is a quarter. */
static void invite(struct card *card, const struct tenant *holder)
{
	bool busy = false;
	int guests = 0;

	FOR_EACH_TENANT (card, tenant) {
		busy |= is_busy(tenant);
		tenant->guest = tenant->guest && may_be_guest(holder, tenant, card->round_ns / 2);
		guests += tenant->guest;
	}
	for (struct tenant *next; guests < GUESTS; guests++) {
		next = next_guest(card, holder);
		if (!next)
			break;
		next->guest = true;
		estimate(next);
	}
	if (busy)
		look_in(card, MS * card->time_scale);
}

void lending_look(struct card *card)
{
	struct tenant *holder = holder_of(card);
	bool alone = true;

	FOR_EACH_TENANT (card, tenant) {
		tenant->guest = tenant->guest && holder && card->lent && !card->closing;
		if (tenant == holder)
			continue;
		alone = alone && !is_busy(tenant);
		tenant->estimated = tenant->estimated && (tenant->guest || is_busy(tenant));
	}
	if (!holder || card->closing)
		return;
	if (card->lent)
		judge(card, holder);
	if (card->lent)
		invite(card, holder);
	else if (alone)
		learn(card, holder);
}

void lending_charge(struct card *card, int64_t passed_ns)
{
	int64_t owed_ns = 0;

	FOR_EACH_TENANT (card, tenant) {
		if (!tenant->estimated)
			continue;
		const uint64_t units = tenant->seen.submitted - tenant->counted;
		tenant->owed_ns += least(
			(int64_t)(units % UNITS_MOST) * tenant->unit_ns, SECOND * card->time_scale);
		tenant->counted = tenant->seen.submitted;
		owed_ns += tenant->owed_ns;
	}
	FOR_EACH_TENANT (card, tenant) {
		if (!tenant->estimated)
			continue;
		tenant->taken_ns = tenant->owed_ns;
		if (owed_ns > passed_ns)
			tenant->taken_ns =
				(int64_t)((__int128)passed_ns * tenant->owed_ns / owed_ns);
		tenant->owed_ns -= tenant->taken_ns;
		if (card->lent)
			card->lent_work_ns += tenant->taken_ns;
	}
	if (card->lent)
		card->lent_ns += passed_ns;
}

int64_t lending_pauses_of(const struct tenant *tenant, int64_t ns)
{
	if (!tenant->estimated)
		return 0;
	return ns / WHOLE *
	       least((tenant->turn_ns - tenant->unit_ns) * WHOLE / tenant->unit_ns,
		       WHOLE * WHOLE / BUSY_LEAST);
}
