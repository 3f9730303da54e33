/* SPDX-License-Identifier: Apache-2.0
 *
 * The virtual time that tenants of one priority share: a tenant that comes back is measured by it.
 */
#ifndef GPUSHARE_SCHEDULER_VIRTUAL_TIME_H
#define GPUSHARE_SCHEDULER_VIRTUAL_TIME_H

#include "card_state.h"

void virtual_time_enter(struct card *card, struct tenant *tenant);
void virtual_time_leave(struct card *card, const struct tenant *tenant);

/* After charge(): update who takes part, and advance the virtual time of each priority. */
void virtual_times_advance(struct card *card, int64_t passed_ns);

#endif
