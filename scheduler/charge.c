/* SPDX-License-Identifier: Apache-2.0 */
#include "charge.h"

#include "credit.h"

/* How long the card was busy with the tenant, other tenants' slices included. Its processes' times
 * are added up in what it says: together they are never busy for longer than has passed. */
static int64_t taken_of(struct tenant *tenant, int64_t passed_ns)
{
	const uint64_t before_ns = tenant->busy_ns, now_ns = tenant->seen.busy_ns;

	/* What has ended is seen a little later than it did, so that a figure may be lower than the
	 * one before: it counts from there again when it is reached. Much lower is another count.
	 */
	if (now_ns < before_ns) {
		if (before_ns - now_ns > (uint64_t)MS)
			tenant->busy_ns = now_ns;
		return 0;
	}
	tenant->busy_ns = now_ns;
	return least(elapsed(before_ns, now_ns), passed_ns);
}

/* The hardware gives every context the same time, so while several tenants have work each gets its
 * contexts' part. How much they overlapped is not known: at least what they say together beyond the
 * time that has passed. Each gives up of that what the others' contexts were given. */
static int64_t charge_of(
	const struct tenant *tenant, int64_t beyond_ns, int64_t others, int64_t contexts)
{
	if (beyond_ns <= 0)
		return tenant->taken_ns;
	const int64_t lost_ns = beyond_ns / others * (contexts - tenant->contexts) / contexts;
	return most(tenant->taken_ns - lost_ns, 0);
}

static void charge_one(struct tenant *tenant, int64_t ns)
{
	tenant->gate.charged_ns += (uint64_t)ns;
	tenant->used_ns += ns;
	tenant->vt += virtual_of(tenant, ns);
	tenant->credit_ns -= ns;
}

/* A window is the whole card: while others wait for its end, the pauses of who has it count as
 * used. They are no work, so nothing is charged for them. */
static void hold(struct card *card, int64_t idle_ns)
{
	struct tenant *holder = holder_of(card);
	bool awaited = false;

	FOR_EACH_TENANT (card, tenant)
		if (tenant != holder && tenant->active && tenant->seen.waiting)
			awaited = true;
	if (!holder || !awaited || idle_ns <= 0)
		return;
	holder->used_ns += idle_ns;
	holder->vt += virtual_of(holder, idle_ns);
}

void charge(struct card *card, int64_t passed_ns)
{
	int64_t sum_ns = 0, contexts = 0, busy = 0, charged_ns = 0;

	FOR_EACH_TENANT (card, tenant) {
		tenant->taken_ns = taken_of(tenant, passed_ns);
		if (tenant->taken_ns == 0)
			continue;
		sum_ns += tenant->taken_ns;
		contexts += tenant->contexts;
		busy++;
	}
	FOR_EACH_TENANT (card, tenant) {
		if (tenant->taken_ns) {
			const int64_t ns =
				charge_of(tenant, sum_ns - passed_ns, busy - 1, contexts);
			/* Where some gave up all that they had, the rest is more than there was. */
			charge_one(tenant, least(ns, passed_ns - charged_ns));
			charged_ns += least(ns, passed_ns - charged_ns);
		}
		credit_refill(card, tenant, passed_ns);
		if (has_demand(tenant))
			tenant->gate.wanted_ns += (uint64_t)passed_ns;
		tenant->contexts = tenant->seen.contexts ? tenant->seen.contexts : 1;
	}
	hold(card, passed_ns - charged_ns);
}
