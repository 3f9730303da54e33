/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the tenants of a card contend for it. Windows divide what is not enough for all. Tenants
 * that are at the host most of the time would only wait for each other's windows, so their gates
 * are open together for as long as they hardly meet on the card.
 */
#ifndef GPUSHARE_SCHEDULER_CONTENTION_H
#define GPUSHARE_SCHEDULER_CONTENTION_H

#include "card_state.h"

/* After the charges of the time that has passed: sets card->uncontended. */
void contention_look(struct card *card, int64_t passed_ns);

#endif
