/* SPDX-License-Identifier: Apache-2.0
 *
 * When a tenant's work ends, by what it said it would take.
 */
#ifndef GPUSHARE_SCHEDULER_PROGRESS_H
#define GPUSHARE_SCHEDULER_PROGRESS_H

#include "card_state.h"

/* How much longer its work will take. */
int64_t progress_left(const struct card *card, const struct tenant *tenant);

/* How much longer it may be before it is stuck: nothing has ended for much longer than it was to
 * take, and others are let besides it. */
int64_t progress_grace(const struct card *card, const struct tenant *tenant);

bool progress_is_stuck(const struct card *card, const struct tenant *tenant);

/* Find work that has no end, and look when there may be some. */
void progress_find_hung(struct card *card);

#endif
