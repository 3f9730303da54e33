/* SPDX-License-Identifier: Apache-2.0 */
#include "pick.h"

#include "credit.h"

static bool may_have_window(const struct card *card, const struct tenant *tenant)
{
	return !tenant->share.online && !tenant->stopped && tenant->seen.waiting > 0 &&
	       credit_suffices(card, tenant);
}

/* Windows of a gang are to be open together: worth a round's unfairness, which evens out. */
bool pick_is_preferred(const struct card *card, const struct tenant *tenant)
{
	return tenant - card->tenants == card->preferred &&
	       card->now_ns < card->preferred_until_ns &&
	       tenant->vt <= card->levels[tenant->level].vt + 2 * card->round_ns;
}

bool pick_before(const struct card *card, const struct tenant *tenant, const struct tenant *other,
	int64_t ahead_ns)
{
	if (tenant->share.priority != other->share.priority)
		return tenant->share.priority < other->share.priority;
	if (pick_is_preferred(card, tenant) != pick_is_preferred(card, other))
		return pick_is_preferred(card, tenant);
	return tenant->vt < other->vt + ahead_ns;
}

struct tenant *pick_next(struct card *card, const struct tenant *except)
{
	struct tenant *next = NULL;

	FOR_EACH_TENANT (card, tenant)
		if (tenant != except && may_have_window(card, tenant) &&
			(!next || pick_before(card, tenant, next, 0)))
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
