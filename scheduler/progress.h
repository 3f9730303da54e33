/* SPDX-License-Identifier: Apache-2.0
 *
 * When a tenant's work finishes, by its own estimates.
 */
#ifndef GPUSHARE_SCHEDULER_PROGRESS_H
#define GPUSHARE_SCHEDULER_PROGRESS_H

#include "card_state.h"

/* The remaining time of its work. */
int64_t progress_left(const struct card *card, const struct tenant *tenant);

/* The remaining time until it counts as hung: nothing has finished for much longer than estimated,
 * and other tenants then run at the same time. */
int64_t progress_grace(const struct card *card, const struct tenant *tenant);

bool progress_is_stuck(const struct card *card, const struct tenant *tenant);

/* Find hung work, and schedule the next check. */
void progress_find_hung(struct card *card);

#endif
