/* SPDX-License-Identifier: Apache-2.0 */
#include "cards.h"

#include "clock.h"
#include "gang.h"
#include "tenant.h"

#include <errno.h>
#include <string.h>

/* Well below GPUSHARE_GATE_STALE_NS, so that a scheduler that is late once is not taken for
 * dead. */
#define BEAT_NS (25 * MS)
/* While no tenant works or waits: the gates then stay valid until the next heartbeat. */
#define ASLEEP_BEAT_NS SECOND
#define ASLEEP_AFTER_NS SECOND
/* How long a tenant that sent no wake-up is taken to be still. */
#define STILL_NS BEAT_NS
#define STILL_ASLEEP_NS (5 * SECOND)
/* Whatever the policy requests: no card uses up a processor core. */
#define SOONEST_NS (MS / 20)
#define SETTLE_NS MS /* from a launch that finds its gate open to its record in the account */

static struct shared_card cards[CARDS_MAX];
static uint32_t time_scale = 1, switch_ns;

void cards_begin(uint32_t scale, uint32_t card_switch_ns)
{
	time_scale = scale;
	switch_ns = card_switch_ns;
}

uint32_t cards_time_scale(void)
{
	return time_scale;
}

struct shared_card *shared_card_of(const char *uuid)
{
	struct shared_card *unused = NULL;

	for (struct shared_card *shared = cards; shared < cards + CARDS_MAX; shared++) {
		if (strcmp(shared->uuid, uuid) == 0)
			return shared;
		if (!unused && !shared->count)
			unused = shared;
	}
	if (!unused)
		return NULL;
	*unused = (struct shared_card){
		.card = card_new(time_scale, switch_ns),
		.due_ns = UINT64_MAX,
		.beat_ns = UINT64_MAX,
	};
	if (!unused->card)
		return NULL;
	strncpy(unused->uuid, uuid, sizeof(unused->uuid) - 1);
	return unused;
}

static void forget_empty(struct shared_card *shared)
{
	if (shared->count || !shared->card)
		return;
	card_free(shared->card);
	*shared = (struct shared_card){0};
}

int shared_card_add(struct shared_card *shared, struct tenant_card *tenant_card,
	const struct share *share, uint64_t now_ns)
{
	tenant_card->number = card_add(shared->card, share, now_ns);
	if (tenant_card->number < 0) {
		forget_empty(shared);
		return EUSERS;
	}
	tenant_card->share = *share;
	tenant_card->shared = shared;
	shared->tenants[tenant_card->number] = tenant_card;
	shared->count++;
	shared->woken = true;
	return 0;
}

/* A correction applies from when it was sent last. */
static bool is_same(const struct share *one, const struct share *other)
{
	return one->permille == other->permille && one->capped == other->capped &&
	       one->online == other->online && one->priority == other->priority &&
	       one->gang == other->gang && one->measured == other->measured &&
	       !one->correction_permille && !other->correction_permille;
}

void shared_card_change(struct tenant_card *tenant_card, const struct share *share, uint64_t now_ns)
{
	if (is_same(&tenant_card->share, share))
		return;
	tenant_card->share = *share;
	card_change(tenant_card->shared->card, tenant_card->number, share, now_ns);
	tenant_card->shared->woken = true;
}

void shared_card_remove(struct tenant_card *tenant_card, uint64_t now_ns)
{
	struct shared_card *shared = tenant_card->shared;

	card_remove(shared->card, tenant_card->number, now_ns);
	shared->tenants[tenant_card->number] = NULL;
	shared->count--;
	shared->woken = true;
	tenant_card->shared = NULL;
	forget_empty(shared);
}

/* Whether its state is known without reading it: it has nothing pending, cannot start anything, and
 * a launch that begins to wait sends a wake-up. What passed before the gate was closed is known a
 * moment later. */
static bool is_still(const struct tenant_card *tenant_card, uint64_t now_ns)
{
	const bool awake = now_ns - tenant_card->shared->active_ns < ASLEEP_AFTER_NS;

	return tenant_card->closed_ns && !tenant_card->woken && !tenant_card->seen.contexts &&
	       tenant_card->read_ns > tenant_card->closed_ns + SETTLE_NS &&
	       now_ns - tenant_card->read_ns < (awake ? STILL_NS : STILL_ASLEEP_NS);
}

static void look(struct tenant_card *tenant_card, uint64_t now_ns)
{
	const uint64_t busy_ns = tenant_card->seen.busy_ns;

	if (is_still(tenant_card, now_ns)) {
		tenant_card->seen.at_ns = now_ns;
	} else {
		status_page_read(tenant_card->status, tenant_card->tenant->status,
			tenant_card->card, tenant_card->woken, now_ns, &tenant_card->seen);
		tenant_card->read_ns = now_ns;
		tenant_card->woken = false;
	}
	if (tenant_card->seen.contexts || tenant_card->seen.waiting ||
		tenant_card->seen.busy_ns != busy_ns)
		tenant_card->shared->active_ns = now_ns;
}

static void see(struct shared_card *shared, uint64_t now_ns)
{
	for (int number = 0; number < CARD_TENANTS; number++) {
		struct tenant_card *tenant_card = shared->tenants[number];

		if (!tenant_card)
			continue;
		look(tenant_card, now_ns);
		card_see(shared->card, number, &tenant_card->seen);
	}
}

/* Write every gate, and the time of the next heartbeat. */
static void write_gates(struct shared_card *shared, uint64_t now_ns)
{
	const bool awake = now_ns - shared->active_ns < ASLEEP_AFTER_NS;
	/* The same for all cards, so that this is one wake-up. */
	const uint64_t asleep_until_ns = (now_ns / ASLEEP_BEAT_NS + 1) * ASLEEP_BEAT_NS;

	shared->beat_ns = UINT64_MAX;
	for (int number = 0; number < CARD_TENANTS; number++) {
		struct tenant_card *tenant_card = shared->tenants[number];

		if (!tenant_card)
			continue;
		const struct gate *decided = card_gate(shared->card, number);
		/* Before the mode: otherwise a gate that has just closed would look like a dead
		 * scheduler's. */
		gate_beat(tenant_card->gate, tenant_card->status->said_busy_ns,
			awake ? now_ns : asleep_until_ns);
		gate_write(tenant_card->gate, decided, &tenant_card->totals_before);
		if (decided->mode != GPUSHARE_GATE_CLOSED)
			tenant_card->closed_ns = 0;
		else if (!tenant_card->closed_ns)
			tenant_card->closed_ns = now_ns;
		if (decided->mode != GPUSHARE_GATE_OPEN)
			shared->beat_ns = awake ? now_ns + BEAT_NS : asleep_until_ns;
	}
}

/* The windows of a tenant with several cards open together: a decision here may require one on
 * another card. */
static void align_gangs(const struct shared_card *shared)
{
	for (int number = 0; number < CARD_TENANTS; number++) {
		const struct tenant_card *tenant_card = shared->tenants[number];
		struct gang_place places[GPUSHARE_MAX_CARDS];
		struct shared_card *cards_of[GPUSHARE_MAX_CARDS];
		uint32_t count = 0;

		if (!tenant_card || tenant_card->tenant->card_count < 2)
			continue;
		for (uint32_t card = 0; card < tenant_card->tenant->card_count; card++) {
			const struct tenant_card *one = &tenant_card->tenant->cards[card];
			if (!one->shared)
				continue;
			cards_of[count] = one->shared;
			places[count++] = (struct gang_place){one->shared->card, one->number};
		}
		const uint32_t changed = gang_align(places, count);
		for (uint32_t at = 0; at < count; at++)
			if (changed >> at & 1)
				cards_of[at]->woken = true;
	}
}

static void decide(struct shared_card *shared, uint64_t now_ns)
{
	shared->woken = false;
	see(shared, now_ns);
	uint64_t due_ns = card_decide(shared->card, now_ns);
	shared->due_ns = due_ns < now_ns + SOONEST_NS ? now_ns + SOONEST_NS : due_ns;
	write_gates(shared, now_ns);
	align_gangs(shared);
}

uint64_t cards_decide(uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;

	for (struct shared_card *shared = cards; shared < cards + CARDS_MAX; shared++) {
		if (!shared->count)
			continue;
		if (shared->woken || shared->due_ns <= now_ns || shared->beat_ns <= now_ns)
			decide(shared, now_ns);
		if (shared->due_ns < next_ns)
			next_ns = shared->due_ns;
		if (shared->beat_ns < next_ns)
			next_ns = shared->beat_ns;
	}
	/* A card of a gang that was decided before is decided again at once. */
	for (struct shared_card *shared = cards; shared < cards + CARDS_MAX; shared++)
		if (shared->count && shared->woken)
			next_ns = now_ns;
	return next_ns;
}
