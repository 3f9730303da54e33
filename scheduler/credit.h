/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may never have more than a share: credit is what it has left of it. It fills at the rate of
 * the share while time passes, to two windows at most, and work empties it; below zero is a debt.
 */
#ifndef GPUSHARE_SCHEDULER_CREDIT_H
#define GPUSHARE_SCHEDULER_CREDIT_H

#include "card_state.h"

/* How long the tenant's windows are. */
int64_t window_of(const struct card *card, const struct tenant *tenant);

void credit_begin(const struct card *card, struct tenant *tenant);
void credit_refill(const struct card *card, struct tenant *tenant, int64_t passed_ns);

/* Whether there is enough for a window, and how long until there is. */
bool credit_suffices(const struct card *card, const struct tenant *tenant);
int64_t credit_wait_ns(const struct card *card, const struct tenant *tenant);

/* For how long more work may be let in, with `coming_ns` of it pending already. */
int64_t credit_lasts_ns(const struct tenant *tenant, int64_t coming_ns);

#endif
