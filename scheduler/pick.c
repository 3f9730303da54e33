/* SPDX-License-Identifier: Apache-2.0 */
#include "pick.h"

#include "credit.h"
#include "progress.h"

bool pick_wants(const struct card *card, const struct tenant *tenant)
{
	return !tenant->share.online && !tenant->stopped &&
	       (tenant->seen.waiting > 0 || tenant->guest) && !progress_is_stuck(card, tenant) &&
	       credit_suffices(card, tenant);
}

static bool may_have_window(const struct card *card, const struct tenant *tenant)
{
	if (!tenant->share.gang)
		return pick_wants(card, tenant);
	return tenant->granted && (tenant->elsewhere || pick_wants(card, tenant));
}

bool pick_before(const struct tenant *tenant, const struct tenant *other, int64_t ahead_ns)
{
	if (tenant->share.priority != other->share.priority)
		return tenant->share.priority < other->share.priority;
	/* It was its turn on all its cards. */
	if (tenant->granted != other->granted)
		return tenant->granted;
	return tenant->vt < other->vt + ahead_ns;
}

struct tenant *pick_next(struct card *card, const struct tenant *except)
{
	struct tenant *next = NULL;

	FOR_EACH_TENANT (card, tenant)
		if (tenant != except && may_have_window(card, tenant) &&
			(!next || pick_before(tenant, next, 0)))
			next = tenant;
	return next;
}

void pick_look(struct card *card)
{
	FOR_EACH_TENANT (card, tenant)
		if (!tenant->share.online && !tenant->stopped && tenant->seen.waiting > 0 &&
			!credit_suffices(card, tenant))
			look_in(card, credit_wait_ns(card, tenant));
}
