/* SPDX-License-Identifier: Apache-2.0 */
#include "charge.h"

#include "credit.h"
#include "lending.h"

/* How long the card was busy with the tenant, including other tenants' time slices. The claimed
 * figure is a sum over processes: together they are never busy for longer than has passed. */
static int64_t taken_of(struct tenant *tenant, int64_t passed_ns)
{
	const uint64_t before_ns = tenant->busy_ns, now_ns = tenant->seen.busy_ns;

	/* The end of work is observed a little late, so a figure may be lower than the one before:
	 * it counts from there again when it is reached. A much lower figure is a new count. */
	if (now_ns < before_ns) {
		if (before_ns - now_ns > (uint64_t)MS)
			tenant->busy_ns = now_ns;
		return 0;
	}
	tenant->busy_ns = now_ns;
	return least(elapsed(before_ns, now_ns), passed_ns);
}

/* A tenant claims its pending work until it reports that it has finished, which a stopped process
 * never does. Where the driver measures the tenants, the claim counts only until the work should
 * have finished at the pace that the hardware gave it: what it really takes after that, the driver
 * shows (card.h, correction_permille). */
static bool is_believed(
	struct card *card, struct tenant *tenant, int64_t passed_ns, int64_t contexts)
{
	const int64_t pending_ns = (int64_t)tenant->seen.pending_ns;
	const int64_t margin_ns =
		least(most(pending_ns, GRACE_LEAST * card->time_scale), OVERRUN * card->time_scale);

	if (tenant->progress_ns != tenant->ran_since_ns) {
		tenant->ran_since_ns = tenant->progress_ns;
		tenant->ran_ns = 0;
	}
	tenant->ran_ns += passed_ns * tenant->contexts / most(contexts, 1);
	return !tenant->share.measured || !is_busy(tenant) ||
	       tenant->ran_ns <= pending_ns + margin_ns;
}

/* The hardware gives every context the same time, so while several tenants have work, each gets
 * the part of its contexts. Their overlap is not known: it is at least what they claim together
 * beyond the time that has passed. Each is credited the part of that which went to the others'
 * contexts. */
static int64_t charge_of(
	const struct tenant *tenant, int64_t beyond_ns, int64_t others, int64_t contexts)
{
	if (beyond_ns <= 0)
		return tenant->taken_ns;
	const int64_t lost_ns = beyond_ns / others * (contexts - tenant->contexts) / contexts;
	return most(tenant->taken_ns - lost_ns, 0);
}

/* What the driver measured of the tenant lately and its gate did not count, or the gate counted
 * although another tenant had it. */
static void correct(const struct card *card, struct tenant *tenant, int64_t passed_ns)
{
	const int64_t ns = passed_ns * tenant->share.correction_permille / WHOLE;

	if (elapsed(tenant->corrected_ns, card->now_ns) > CORRECTED)
		return;
	tenant->vt += virtual_of(tenant, ns);
	tenant->credit_ns -= ns;
}

static void charge_one(struct tenant *tenant, int64_t ns)
{
	const int64_t held_ns = ns + lending_pauses_of(tenant, ns);

	tenant->gate.charged_ns += (uint64_t)ns;
	tenant->used_ns += held_ns;
	tenant->vt += virtual_of(tenant, held_ns);
	tenant->credit_ns -= ns;
}

/* A window is the whole card: while others wait for its end, the holder's pauses count as used.
 * They are not work, so they are not charged. */
static void hold(struct card *card, int64_t idle_ns)
{
	struct tenant *holder = holder_of(card);
	bool awaited = false;

	FOR_EACH_TENANT (card, tenant)
		if (tenant != holder && tenant->active && tenant->seen.waiting)
			awaited = true;
	if (!holder || !awaited || idle_ns <= 0 || holder->estimated)
		return;
	holder->used_ns += idle_ns;
	holder->vt += virtual_of(holder, idle_ns);
}

void charge(struct card *card, int64_t passed_ns)
{
	int64_t sum_ns = 0, contexts = 0, all_contexts = 0, busy = 0, charged_ns = 0;

	FOR_EACH_TENANT (card, tenant) {
		tenant->taken_ns = tenant->claim_ns = taken_of(tenant, passed_ns);
		tenant->gate.claimed_ns += (uint64_t)tenant->taken_ns;
		if (tenant->ungated)
			tenant->gate.ungated_ns += (uint64_t)tenant->taken_ns;
		if (tenant->taken_ns)
			all_contexts += tenant->contexts;
	}
	lending_charge(card, passed_ns);
	FOR_EACH_TENANT (card, tenant) {
		tenant->believed = is_believed(card, tenant, passed_ns, all_contexts);
		if (tenant->taken_ns == 0 || !tenant->believed)
			continue;
		sum_ns += tenant->taken_ns;
		contexts += tenant->contexts;
		busy++;
	}
	/* Claims that are not believed count for what the others leave. */
	for (int believed = 1; believed >= 0; believed--)
		FOR_EACH_TENANT (card, tenant) {
			if (!tenant->taken_ns || tenant->believed != believed)
				continue;
			const int64_t claim_ns =
				believed ? charge_of(tenant, sum_ns - passed_ns, busy - 1, contexts)
					 : tenant->taken_ns;
			/* If some were credited everything that they had, the rest exceeds the time
			 * that has passed. */
			const int64_t ns = least(claim_ns, passed_ns - charged_ns);
			charge_one(tenant, ns);
			charged_ns += ns;
		}
	FOR_EACH_TENANT (card, tenant) {
		correct(card, tenant, passed_ns);
		credit_refill(card, tenant, passed_ns);
		if (has_demand(tenant))
			tenant->gate.demand_ns += (uint64_t)passed_ns;
		tenant->contexts = tenant->seen.contexts ? tenant->seen.contexts : 1;
	}
	hold(card, passed_ns - charged_ns);
}
