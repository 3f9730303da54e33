/* SPDX-License-Identifier: Apache-2.0 */
#include "window.h"

#include "credit.h"
#include "lending.h"
#include "pick.h"
#include "progress.h"

#include <stddef.h>

/* Whether `ns` from now has come; otherwise schedules a decision at that time. */
static bool is_due(struct card *card, int64_t ns)
{
	if (ns <= 0)
		return true;
	look_in(card, ns);
	return false;
}

/* How long the holder may pause. Longer while it is behind and the next tenant's units of work are
 * long: what that starts in each of the holder's pauses could not be withdrawn, and would leave the
 * holder behind. */
static int64_t pause_of(struct card *card, const struct tenant *holder, const struct tenant *next)
{
	if (holder->elsewhere)
		return GANG_PATIENCE * card->time_scale;
	if (next && next->piece_ns > SURE * card->time_scale &&
		next->vt - holder->vt > card->round_ns / 2)
		return PATIENCE * card->time_scale;
	if (lending_is_worth(card, holder))
		return most(IDLE * card->time_scale, 4 * holder->pause_ns);
	return IDLE * card->time_scale;
}

/* Longer than a pause without work. */
static bool is_idle(struct card *card, const struct tenant *holder, const struct tenant *next)
{
	if (has_demand(holder))
		return false;
	const uint64_t since_ns =
		holder->seen.idle_ns > holder->opened_ns ? holder->seen.idle_ns : holder->opened_ns;
	return is_due(card, pause_of(card, holder, next) - elapsed(since_ns, card->now_ns));
}

/* Threads that wait at an open gate do not run: their process is stopped, or the machine is
 * overloaded. */
static bool is_unused(struct card *card, struct tenant *holder)
{
	if (is_busy(holder) || !holder->seen.waiting || holder->seen.submitted != holder->submitted)
		return false;
	if (!is_due(card, UNUSED * card->time_scale - elapsed(holder->opened_ns, card->now_ns)))
		return false;
	holder->stopped = true;
	holder->stopped_ns = card->now_ns;
	return true;
}

static bool is_stuck(struct card *card, const struct tenant *holder)
{
	return is_busy(holder) && !holder->gate.hung && is_due(card, progress_grace(card, holder));
}

/* A tenant that was asleep gets its share back at once, others when they are far behind. */
static bool is_ahead(struct card *card, const struct tenant *holder, const struct tenant *next)
{
	const int64_t far = next->slept	  ? 0
			    : next->guest ? card->round_ns / 2
					  : card->round_ns * 3 / 2;

	if (next->granted && !holder->granted)
		return true;
	if (holder->vt - next->vt <= far)
		return false;
	return is_due(card, WINDOW_SHORTEST * card->time_scale - holder->used_ns);
}

static bool is_used_up(struct card *card, struct tenant *holder, const struct tenant *next)
{
	const int64_t coming_ns = progress_left(card, holder);

	if (holder->share.capped &&
		is_due(card, credit_lasts_ns(holder, coming_ns) - LEAD / 2 * card->time_scale))
		return true;
	if (!next) {
		/* As long as no tenant waits for its end. */
		holder->window_ns = most(holder->window_ns, holder->used_ns);
		return false;
	}
	const int64_t left_ns = holder->window_ns - holder->used_ns - coming_ns;
	if (left_ns > LEAD / 2 * card->time_scale) {
		look_in(card, left_ns);
		return false;
	}
	if (next->guest ? lending_is_due(card, next)
			: pick_before(next, holder, virtual_of(holder, coming_ns)))
		return true;
	lending_begin(card, holder);
	holder->window_ns = holder->used_ns + coming_ns + window_of(card, holder);
	look_in(card, window_of(card, holder));
	return false;
}

/* Whether the holder's window ends, given that `next` waits for it (NULL: none). */
static bool is_over(struct card *card, struct tenant *holder, const struct tenant *next)
{
	if (holder->share.gang && !holder->granted)
		return true;
	if (!next)
		/* A capped tenant's credit must not run out unnoticed when it works again. */
		return (holder->share.capped && is_idle(card, holder, NULL)) ||
		       is_used_up(card, holder, NULL);
	return next->share.priority < holder->share.priority || is_idle(card, holder, next) ||
	       is_unused(card, holder) || is_stuck(card, holder) || is_ahead(card, holder, next) ||
	       is_used_up(card, holder, next);
}

/* A tenant that was asleep does not wait for what others started meanwhile. */
static bool is_reclaimed(struct card *card)
{
	const struct tenant *next = pick_next(card, NULL);

	return next && next->slept &&
	       is_due(card, RECLAIM * card->time_scale - elapsed(card->closed_ns, card->now_ns));
}

/* Whether the holder's last work has finished, or will within the time it takes to open the next
 * gate. The estimate of long units of work may be far off: their end is awaited, and its
 * wake-up. */
static bool has_drained(struct card *card, struct tenant *holder)
{
	const int64_t pending_ns = (int64_t)holder->seen.pending_ns;
	const int64_t lead_ns = progress_left(card, holder) - LEAD * card->time_scale;

	if (!is_busy(holder) || holder->gate.hung)
		return true;
	if (is_stuck(card, holder) ||
		is_due(card, card->awaited_ns - elapsed(card->closed_ns, card->now_ns))) {
		holder->gate.overruns++;
		return true;
	}
	if (is_reclaimed(card))
		return true;
	if (pending_ns > SURE * card->time_scale && lead_ns <= 0)
		return false;
	return is_due(card, lead_ns);
}

/* How long one unit of work takes, by what was submitted since the last window opened: what was
 * done since then and what is left now, without what was left then. A window may have consisted of
 * few units that were long by chance. */
static void learn_piece(struct tenant *tenant)
{
	const uint64_t pieces = tenant->seen.submitted - tenant->submitted;
	const int64_t done_ns = elapsed(tenant->opened_busy_ns, tenant->seen.busy_ns);
	const int64_t left_ns = (int64_t)tenant->seen.pending_ns;

	if (!tenant->opened_ns || pieces == 0 || pieces >= UINT32_MAX) {
		tenant->piece_ns = tenant->piece_ns ? tenant->piece_ns : left_ns;
		return;
	}
	const int64_t piece_ns =
		most(done_ns + left_ns - tenant->opened_pending_ns, 0) / (int64_t)pieces;
	tenant->piece_ns = tenant->piece_ns ? (3 * tenant->piece_ns + piece_ns) / 4 : piece_ns;
}

static void window_open(struct card *card, struct tenant *tenant)
{
	learn_piece(tenant);
	tenant->opened_ns = card->now_ns;
	tenant->opened_busy_ns = tenant->seen.busy_ns;
	tenant->opened_pending_ns = (int64_t)tenant->seen.pending_ns;
	tenant->submitted = tenant->seen.submitted;
	tenant->used_ns = 0;
	tenant->slept = false;
	tenant->window_ns = window_of(card, tenant);
	if (tenant->share.capped)
		tenant->window_ns = least(tenant->window_ns, tenant->credit_ns);
	tenant->gate.windows++;
	card->holder = (int)(tenant - card->tenants);
	card->closing = false;
	lending_begin(card, tenant);
}

static bool close_if_over(struct card *card, struct tenant *holder)
{
	card->closing = is_over(card, holder, pick_next(card, holder));
	card->closed_ns = card->now_ns;
	card->awaited_ns =
		most(holder->window_ns - holder->used_ns, 0) + OVERRUN * card->time_scale;
	return card->closing;
}

void window_withhold(struct card *card)
{
	lending_end(card);
	card->holder = -1;
	card->closing = false;
}

/* Whether the card still belongs to the holder: its gate is open, or its work is awaited. */
static bool goes_on(struct card *card, struct tenant *holder)
{
	if (!card->closing && !close_if_over(card, holder))
		return true;
	return !has_drained(card, holder);
}

void window_turn(struct card *card)
{
	struct tenant *holder = holder_of(card);

	if (holder && goes_on(card, holder))
		return;
	window_withhold(card);
	holder = pick_next(card, NULL);
	if (!holder)
		return;
	window_open(card, holder);
	/* The time of the first check. Its pending work may exceed a window. */
	if (!goes_on(card, holder))
		look_in(card, 0);
}

static bool is_turn(struct card *card, const struct tenant *tenant)
{
	struct tenant *holder = holder_of(card);
	const struct tenant *first = pick_next(card, holder);

	if (!pick_wants(card, tenant) || (first && pick_before(first, tenant, 0)))
		return false;
	return !holder || card->closing || is_over(card, holder, tenant);
}

void window_look_for_gangs(struct card *card)
{
	FOR_EACH_TENANT (card, tenant)
		if (tenant->share.gang && !tenant->granted)
			tenant->due = is_turn(card, tenant);
}

bool window_is_probe(struct card *card, const struct tenant *tenant)
{
	const int64_t every_ns = PROBE * card->time_scale, for_ns = PROBE_OPEN * card->time_scale;

	if (!tenant->stopped)
		return false;
	const int64_t at_ns = elapsed(tenant->stopped_ns, card->now_ns) % every_ns;
	look_in(card, at_ns < for_ns ? for_ns - at_ns : every_ns - at_ns);
	return at_ns < for_ns;
}
