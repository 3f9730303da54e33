/* SPDX-License-Identifier: Apache-2.0
 *
 * Lending: while a tenant whose pauses are long has the window, the gates of others are open as
 * well, as its *guests*, and their work fills the pauses. The times that are measured then contain
 * waits for each other's work, so guests and holder are charged by the number of their units of
 * work, and what a unit takes is measured again and again while a tenant has the card to itself.
 */
#ifndef GPUSHARE_SCHEDULER_LENDING_H
#define GPUSHARE_SCHEDULER_LENDING_H

#include "card_state.h"

/* After new claims of the tenant. */
void lending_see(struct tenant *tenant, const struct seen *before);

/* Whether the holder's pauses are worth a switch, and all others pause as well: a tenant that does
 * not gets the next window as soon as one of them pauses. */
bool lending_is_worth(struct card *card, const struct tenant *holder);

/* Whether it is time to measure the tenant alone. */
bool lending_is_due(const struct card *card, const struct tenant *tenant);

/* The holder's window begins or goes on: with guests or without. */
void lending_begin(struct card *card, struct tenant *holder);
void lending_end(struct card *card);

/* After the decision about the window: measures the holder, and chooses the guests. */
void lending_look(struct card *card);

/* Sets taken_ns of those that are charged by units of work. */
void lending_charge(struct card *card, int64_t passed_ns);

/* What `ns` of the tenant's work would take of a window without guests, beyond that. */
int64_t lending_pauses_of(const struct tenant *tenant, int64_t ns);

#endif
