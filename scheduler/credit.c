/* SPDX-License-Identifier: Apache-2.0 */
#include "credit.h"

int64_t window_of(const struct card *card, const struct tenant *tenant)
{
	const int64_t ns = card->round_ns * tenant->share.permille / WHOLE;
	const int64_t longest = tenant->share.capped ? WINDOW_LONGEST_CAPPED : WINDOW_LONGEST;

	return least(most(ns, WINDOW_SHORTEST * card->time_scale), longest * card->time_scale);
}

void credit_begin(const struct card *card, struct tenant *tenant)
{
	tenant->credit_ns = window_of(card, tenant);
}

/* What may be saved. */
static int64_t most_credit(const struct card *card, const struct tenant *tenant)
{
	return most(2 * window_of(card, tenant), CREDIT_LEAST * card->time_scale);
}

void credit_refill(const struct card *card, struct tenant *tenant, int64_t passed_ns)
{
	const int64_t earned_ns = passed_ns * tenant->share.permille / WHOLE;
	const int64_t debt_ns = DEBT_MAX * card->time_scale * tenant->share.permille / WHOLE;

	tenant->credit_ns =
		least(most(tenant->credit_ns, -debt_ns) + earned_ns, most_credit(card, tenant));
}

int64_t credit_spare_ns(const struct card *card, const struct tenant *tenant)
{
	return tenant->share.capped ? tenant->credit_ns - most_credit(card, tenant) / 2
				    : ELAPSED_MAX;
}

/* A window for less is not worth the switch. */
static int64_t least_credit(const struct card *card, const struct tenant *tenant)
{
	return window_of(card, tenant) / 4;
}

bool credit_suffices(const struct card *card, const struct tenant *tenant)
{
	return !tenant->share.capped || tenant->credit_ns >= least_credit(card, tenant);
}

int64_t credit_wait_ns(const struct card *card, const struct tenant *tenant)
{
	if (credit_suffices(card, tenant))
		return 0;
	return virtual_of(tenant, least_credit(card, tenant) - tenant->credit_ns) + 1;
}

int64_t credit_lasts_ns(const struct tenant *tenant, int64_t coming_ns)
{
	const int64_t rest_ns = tenant->credit_ns - coming_ns;

	if (tenant->share.permille == WHOLE)
		return ELAPSED_MAX;
	return most(rest_ns, 0) * WHOLE / (WHOLE - tenant->share.permille);
}
