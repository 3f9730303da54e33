/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing the next tenant.
 */
#ifndef GPUSHARE_SCHEDULER_PICK_H
#define GPUSHARE_SCHEDULER_PICK_H

#include "card_state.h"

/* The first of the tenants that wait for a window and may have one, except `except` (NULL: none);
 * NULL if there is none. */
struct tenant *pick_next(struct card *card, const struct tenant *except);

/* Whether it waits for a window and has earned one. */
bool pick_wants(const struct card *card, const struct tenant *tenant);

/* Whether `tenant` comes before `other`, which will have `ahead_ns` more virtual time by then. */
bool pick_before(const struct tenant *tenant, const struct tenant *other, int64_t ahead_ns);

/* When a waiting tenant will have earned a window: decide then. */
void pick_look(struct card *card);

#endif
