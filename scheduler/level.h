/* SPDX-License-Identifier: Apache-2.0
 *
 * The time that tenants of one priority have in common: who comes back is measured by it.
 */
#ifndef GPUSHARE_SCHEDULER_LEVEL_H
#define GPUSHARE_SCHEDULER_LEVEL_H

#include "card_state.h"

void level_enter(struct card *card, struct tenant *tenant);
void level_leave(struct card *card, const struct tenant *tenant);

/* After charge(): who takes part now, and how far each level has come. */
void levels_advance(struct card *card, int64_t passed_ns);

#endif
