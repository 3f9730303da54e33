/* SPDX-License-Identifier: Apache-2.0
 *
 * The cards of this machine that tenants have, by UUID: who has which part of each, and when it is
 * to be looked at again.
 */
#ifndef GPUSHARE_SCHEDULER_DEVICE_H
#define GPUSHARE_SCHEDULER_DEVICE_H

#include "card.h"
#include "page.h"
#include "work.h"

#include <stdbool.h>
#include <stdint.h>

#define DEVICES_MAX 64
#define UUID_BYTES 48

struct device;
struct tenant;

/* A tenant's place on one card. */
struct place {
	struct device *device;
	const struct tenant *tenant;
	int number; /* of the tenant, on that card */
	struct share share;
	struct gpushare_gate *gate;
	struct page_before before;
	struct work *work;
	uint32_t card;	    /* the tenant's own number of it */
	struct seen seen;   /* at the last look */
	uint64_t read_ns;   /* when its status was last read */
	uint64_t closed_ns; /* since when its gate is closed; 0: it is not */
	bool rung;	    /* its bell was, since it was read */
};

struct device {
	char uuid[UUID_BYTES]; /* empty: nobody's */
	struct card *card;
	struct place *places[CARD_TENANTS]; /* by the tenant's number on it */
	uint32_t count;
	bool rung;	  /* to be looked at in this round */
	uint64_t due_ns;  /* when the policy wants to look; UINT64_MAX: not before somebody rings */
	uint64_t beat_ns; /* when a heartbeat is due; UINT64_MAX: all gates are open */
	uint64_t active_ns; /* when somebody was last seen to work or wait */
};

/* How often durations of the policy's own are multiplied: a simulated card in slow motion. */
void devices_begin(uint32_t slow);
uint32_t devices_slow(void);

/* The card `uuid`, made where it is not known; NULL without room for it. */
struct device *device_of(const char *uuid);

/* Give `place` its part of the card; 0 or an errno: EUSERS with CARD_TENANTS there already. */
int device_add(
	struct device *device, struct place *place, const struct share *share, uint64_t now_ns);
/* The same as before changes nothing. */
void device_change(struct place *place, const struct share *share, uint64_t now_ns);
void device_remove(struct place *place, uint64_t now_ns);

/* Look at all tenants of each card that is due or was rung for, and write their gates. Returns when
 * the next one is due. */
uint64_t devices_decide(uint64_t now_ns);

#endif
