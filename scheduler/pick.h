/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose turn it is.
 */
#ifndef GPUSHARE_SCHEDULER_PICK_H
#define GPUSHARE_SCHEDULER_PICK_H

#include "card_state.h"

/* Of those who wait for a window and may have one, but for `except` (NULL: nobody), who comes
 * first; NULL: nobody. */
struct tenant *pick_next(struct card *card, const struct tenant *except);

/* Whether it waits for a window and has earned one. */
bool pick_wants(const struct card *card, const struct tenant *tenant);

/* Whether `tenant` is to come before `other`, who will have done `ahead_ns` of virtual time more by
 * then. */
bool pick_before(const struct tenant *tenant, const struct tenant *other, int64_t ahead_ns);

/* When somebody who waits will have earned a window: look then. */
void pick_look(struct card *card);

#endif
