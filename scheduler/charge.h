/* SPDX-License-Identifier: Apache-2.0
 *
 * The charges of tenants for the time that has passed.
 */
#ifndef GPUSHARE_SCHEDULER_CHARGE_H
#define GPUSHARE_SCHEDULER_CHARGE_H

#include "card_state.h"

/* Charge each tenant for `passed_ns`, the time since the last decision: together never more than
 * that. */
void charge(struct card *card, int64_t passed_ns);

#endif
