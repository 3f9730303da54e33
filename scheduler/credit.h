/* SPDX-License-Identifier: Apache-2.0
 *
 * Tenants that may never exceed their share: credit is what is left of it. It fills at the rate of
 * the share, up to two windows, and work consumes it; a negative credit is a debt.
 */
#ifndef GPUSHARE_SCHEDULER_CREDIT_H
#define GPUSHARE_SCHEDULER_CREDIT_H

#include "card_state.h"

/* The length of the tenant's windows. */
int64_t window_of(const struct card *card, const struct tenant *tenant);

void credit_begin(const struct card *card, struct tenant *tenant);
void credit_refill(const struct card *card, struct tenant *tenant, int64_t passed_ns);

/* By how much the credit exceeds half of what may be saved: a tenant that uses less than its share
 * has all of it. ELAPSED_MAX if the tenant is not capped. */
int64_t credit_spare_ns(const struct card *card, const struct tenant *tenant);

/* Whether the credit suffices for a window, and how long until it does. */
bool credit_suffices(const struct card *card, const struct tenant *tenant);
int64_t credit_wait_ns(const struct card *card, const struct tenant *tenant);

/* For how long more work may pass, with `coming_ns` of it pending already. */
int64_t credit_lasts_ns(const struct tenant *tenant, int64_t coming_ns);

#endif
