/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant with several cards works on all of them or on none: collectives wait for each other, and
 * one that runs on one card while the other's gate is closed only wastes time. So its windows open
 * together, when it is the tenant's turn on each card where it waits, and end together.
 */
#ifndef GPUSHARE_SCHEDULER_GANG_H
#define GPUSHARE_SCHEDULER_GANG_H

#include "card.h"

/* A tenant on one of its cards. */
struct gang_place {
	struct card *card;
	int tenant;
};

/* After card_decide of a card, for each tenant there with several cards, with all its places (at
 * most 32). Returns a bit for each place whose card must be decided again, now. */
uint32_t gang_align(const struct gang_place *places, uint32_t count);

#endif
