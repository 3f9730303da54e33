/* SPDX-License-Identifier: Apache-2.0
 *
 * The cards of this machine that tenants use, by UUID: the share of each tenant on each card, and
 * when the card is due for a decision.
 */
#ifndef GPUSHARE_SCHEDULER_CARDS_H
#define GPUSHARE_SCHEDULER_CARDS_H

#include "card.h"
#include "grant_page.h"
#include "status_page.h"

#include <stdbool.h>
#include <stdint.h>

#define CARDS_MAX 64
#define UUID_BYTES 48

struct shared_card;
struct tenant;

/* A tenant on one card. */
struct tenant_card {
	struct shared_card *shared;
	const struct tenant *tenant;
	int number; /* of the tenant, on that card */
	struct share share;
	struct gpushare_gate *gate;
	struct gate_totals totals_before;
	struct status_page *status;
	uint32_t card;	    /* the tenant's own number of the card */
	struct seen seen;   /* at the last look */
	uint64_t read_ns;   /* when its status was last read */
	uint64_t closed_ns; /* since when its gate is closed; 0: it is open */
	bool woken;	    /* it sent a wake-up since it was read */
};

struct shared_card {
	char uuid[UUID_BYTES]; /* empty: unused */
	struct card *card;
	struct tenant_card *tenants[CARD_TENANTS]; /* by the tenant's number on the card */
	uint32_t count;
	bool woken;	    /* to be decided in this round */
	uint64_t due_ns;    /* when the policy is due; UINT64_MAX: not before a wake-up */
	uint64_t beat_ns;   /* when a heartbeat is due; UINT64_MAX: all gates are open */
	uint64_t active_ns; /* when a tenant was last seen working or waiting */
};

/* The factor of the policy's durations: a simulated card with scaled time. */
void cards_begin(uint32_t scale, uint32_t card_switch_ns);
uint32_t cards_time_scale(void);

/* The card `uuid`, added if it is unknown; NULL if there is no room for it. */
struct shared_card *shared_card_of(const char *uuid);

/* Give `tenant_card` its share of the card; 0 or an errno: EUSERS if it already has
 * CARD_TENANTS. */
int shared_card_add(struct shared_card *shared, struct tenant_card *tenant_card,
	const struct share *share, uint64_t now_ns);
/* An unchanged share has no effect. */
void shared_card_change(
	struct tenant_card *tenant_card, const struct share *share, uint64_t now_ns);
void shared_card_remove(struct tenant_card *tenant_card, uint64_t now_ns);

/* Read all tenants of each card that is due or was woken, and write their gates. Returns when the
 * next card is due. */
uint64_t cards_decide(uint64_t now_ns);

#endif
