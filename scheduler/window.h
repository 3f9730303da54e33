/* SPDX-License-Identifier: Apache-2.0
 *
 * One tenant's turn: its gate is open, then shut while its last work ends, and the next one's opens
 * just before that, so that the card has no pause.
 */
#ifndef GPUSHARE_SCHEDULER_WINDOW_H
#define GPUSHARE_SCHEDULER_WINDOW_H

#include "card_state.h"

/* Nobody has a window while an online tenant works, or works again in a moment. */
void window_withhold(struct card *card);

/* Let the holder go on, end its turn, or give the next one its own. */
void window_turn(struct card *card);

/* Whether it would be the turn of tenants with several cards. */
void window_look_for_gangs(struct card *card);

/* Whether the gate of one that made nothing of its window is open for a moment besides the
 * holder's: who does not run cannot tell that it does again, and who does will use it. */
bool window_is_probe(struct card *card, const struct tenant *tenant);

#endif
