/* SPDX-License-Identifier: Apache-2.0 */
#include "gang.h"

#include "card_state.h"

#define FOR_EACH_PLACE(places, count, place)                                                       \
	for (const struct gang_place *place = (places); place < (places) + (count); place++)       \
		if (is_gated(place))

static struct tenant *member(const struct gang_place *place)
{
	return &place->card->tenants[place->tenant];
}

/* If its gate is ever closed. */
static bool is_gated(const struct gang_place *place)
{
	const struct tenant *tenant = member(place);

	return tenant->used && tenant->share.gang && !tenant->share.online &&
	       tenant->gate.mode != GPUSHARE_GATE_OPEN;
}

static bool has_window(const struct gang_place *place)
{
	return place->card->holder == place->tenant && !place->card->closing;
}

/* Two gangs that wait for each other's cards would wait forever. */
static bool is_taken(const struct gang_place *place)
{
	FOR_EACH_TENANT (place->card, tenant)
		if (tenant != member(place) && tenant->granted)
			return true;
	return false;
}

/* It is its turn on every card where it waits, and on at least one. */
static bool is_turn(const struct gang_place *places, uint32_t count)
{
	bool waits = false;

	FOR_EACH_PLACE(places, count, place)
	{
		const struct tenant *tenant = member(place);
		if (is_taken(place) || (tenant->seen.waiting && !tenant->due))
			return false;
		waits |= tenant->seen.waiting > 0;
	}
	return waits;
}

static bool is_granted(const struct gang_place *places, uint32_t count)
{
	FOR_EACH_PLACE(places, count, place)
	if (member(place)->granted)
		return true;
	return false;
}

/* Where it waits, and where it worked in its last window, because it will work there again. */
static uint32_t grant(const struct gang_place *places, uint32_t count)
{
	uint32_t changed = 0;

	FOR_EACH_PLACE(places, count, place)
	{
		struct tenant *tenant = member(place);
		if (!tenant->seen.waiting && tenant->seen.submitted == tenant->submitted)
			continue;
		tenant->granted = true;
		tenant->started = false;
		changed |= UINT32_C(1) << (place - places);
	}
	return changed;
}

static uint32_t revoke(const struct gang_place *places, uint32_t count)
{
	uint32_t changed = 0;

	FOR_EACH_PLACE(places, count, place)
	{
		if (member(place)->granted)
			changed |= UINT32_C(1) << (place - places);
		member(place)->granted = false;
	}
	return changed;
}

/* On one card, its window has ended or it has no more work. */
static bool has_ended(const struct gang_place *places, uint32_t count)
{
	bool wants = false;

	FOR_EACH_PLACE(places, count, place)
	{
		struct tenant *tenant = member(place);
		wants |= has_demand(tenant);
		if (!tenant->granted)
			continue;
		if (tenant->started && !has_window(place))
			return true;
		tenant->started |= has_window(place);
	}
	return !wants;
}

/* It started on a card where it was not expected. */
static uint32_t join(const struct gang_place *places, uint32_t count)
{
	uint32_t changed = 0;

	FOR_EACH_PLACE(places, count, place)
	{
		struct tenant *tenant = member(place);
		if (tenant->granted || !tenant->seen.waiting || is_taken(place))
			continue;
		tenant->granted = true;
		tenant->started = false;
		changed |= UINT32_C(1) << (place - places);
	}
	return changed;
}

/* Its work there should have finished: it waits for its counterpart. */
static bool spins(const struct gang_place *place)
{
	const struct tenant *tenant = member(place);

	return is_busy(tenant) && !tenant->gate.hung &&
	       elapsed(tenant->progress_ns, place->card->now_ns) >=
		       (int64_t)tenant->seen.pending_ns;
}

/* The effects on one card of the tenant's other cards. */
static uint32_t set_flags(const struct gang_place *places, uint32_t count)
{
	uint32_t changed = 0;

	FOR_EACH_PLACE(places, count, place)
	{
		struct tenant *tenant = member(place);
		bool elsewhere = false, through = false;
		FOR_EACH_PLACE(places, count, other)
		{
			if (other == place)
				continue;
			elsewhere |= has_demand(member(other));
			through |= spins(other) && tenant->seen.waiting && !has_window(place);
		}
		if (elsewhere != tenant->elsewhere || through != tenant->through)
			changed |= UINT32_C(1) << (place - places);
		tenant->elsewhere = elsewhere;
		tenant->through = through;
	}
	return changed;
}

uint32_t gang_align(const struct gang_place *places, uint32_t count)
{
	uint32_t changed = 0;

	if (is_granted(places, count)) {
		if (has_ended(places, count))
			changed |= revoke(places, count);
		else
			changed |= join(places, count);
	} else if (is_turn(places, count)) {
		changed |= grant(places, count);
	}
	return changed | set_flags(places, count);
}
