/* SPDX-License-Identifier: Apache-2.0
 *
 * One tenant's turn: its gate is open, then closed while its last work finishes, and the next gate
 * opens just before that, so that the card does not pause.
 */
#ifndef GPUSHARE_SCHEDULER_WINDOW_H
#define GPUSHARE_SCHEDULER_WINDOW_H

#include "card_state.h"

/* No tenant has a window while an online tenant works, or is about to work again. */
void window_withhold(struct card *card);

/* Let the holder continue, end its turn, or start the next one's. */
void window_turn(struct card *card);

/* Whether it would be the turn of tenants with several cards. */
void window_look_for_gangs(struct card *card);

/* Whether to open the gate of a tenant that did not use its window, for a moment and next to the
 * holder's: a process that does not run cannot report that it runs again, and one that runs will
 * use it. */
bool window_is_probe(struct card *card, const struct tenant *tenant);

#endif
