/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "clock.h"
#include "gang.h"
#include "tenant.h"

#include <errno.h>
#include <string.h>

/* Well below GPUSHARE_GATE_STALE_NS, so that a scheduler that is late for once is not taken for
 * dead. */
#define BEAT_NS (25 * MS)
/* While nobody works nor waits: what is said then holds until the next time. */
#define ASLEEP_BEAT_NS SECOND
#define ASLEEP_AFTER_NS SECOND
/* Whatever the policy wants: no card takes a core. */
#define SOONEST_NS (MS / 20)
#define SETTLE_NS MS /* from a launch that finds its gate open to its account's saying so */

static struct device devices[DEVICES_MAX];
static uint32_t slow_motion = 1;

void devices_begin(uint32_t slow)
{
	slow_motion = slow;
}

uint32_t devices_slow(void)
{
	return slow_motion;
}

struct device *device_of(const char *uuid)
{
	struct device *unused = NULL;

	for (struct device *device = devices; device < devices + DEVICES_MAX; device++) {
		if (strcmp(device->uuid, uuid) == 0)
			return device;
		if (!unused && !device->count)
			unused = device;
	}
	if (!unused)
		return NULL;
	*unused = (struct device){
		.card = card_new(slow_motion),
		.due_ns = UINT64_MAX,
		.beat_ns = UINT64_MAX,
	};
	if (!unused->card)
		return NULL;
	strncpy(unused->uuid, uuid, sizeof(unused->uuid) - 1);
	return unused;
}

static void forget_empty(struct device *device)
{
	if (device->count || !device->card)
		return;
	card_free(device->card);
	*device = (struct device){0};
}

int device_add(
	struct device *device, struct place *place, const struct share *share, uint64_t now_ns)
{
	place->number = card_add(device->card, share, now_ns);
	if (place->number < 0) {
		forget_empty(device);
		return EUSERS;
	}
	place->share = *share;
	place->device = device;
	device->places[place->number] = place;
	device->count++;
	device->rung = true;
	return 0;
}

static bool is_same(const struct share *one, const struct share *other)
{
	return one->permille == other->permille && one->capped == other->capped &&
	       one->online == other->online && one->priority == other->priority &&
	       one->gang == other->gang;
}

void device_change(struct place *place, const struct share *share, uint64_t now_ns)
{
	if (is_same(&place->share, share))
		return;
	place->share = *share;
	card_change(place->device->card, place->number, share, now_ns);
	place->device->rung = true;
}

void device_remove(struct place *place, uint64_t now_ns)
{
	struct device *device = place->device;

	card_remove(device->card, place->number, now_ns);
	device->places[place->number] = NULL;
	device->count--;
	device->rung = true;
	place->device = NULL;
	forget_empty(device);
}

/* Whether it is as it was, without a look: it has nothing pending, cannot begin anything, and who
 * begins to wait rings. What passed before the gate was closed is known a moment later. */
static bool is_still(const struct place *place, uint64_t now_ns)
{
	return place->closed_ns && !place->rung && !place->seen.contexts &&
	       place->read_ns > place->closed_ns + SETTLE_NS && now_ns - place->read_ns < BEAT_NS;
}

static void look(struct place *place, uint64_t now_ns)
{
	const uint64_t busy_ns = place->seen.busy_ns;

	if (is_still(place, now_ns)) {
		place->seen.at_ns = now_ns;
	} else {
		work_read(place->work, place->tenant->status, place->card, place->rung, now_ns,
			&place->seen);
		place->read_ns = now_ns;
		place->rung = false;
	}
	if (place->seen.contexts || place->seen.waiting || place->seen.busy_ns != busy_ns)
		place->device->active_ns = now_ns;
}

static void see(struct device *device, uint64_t now_ns)
{
	for (int number = 0; number < CARD_TENANTS; number++) {
		struct place *place = device->places[number];

		if (!place)
			continue;
		look(place, now_ns);
		card_see(device->card, number, &place->seen);
	}
}

/* Write every gate, and when they are to be beaten again. */
static void write_gates(struct device *device, uint64_t now_ns)
{
	const bool awake = now_ns - device->active_ns < ASLEEP_AFTER_NS;
	/* Of all cards together, so that this is one wake-up. */
	const uint64_t asleep_until_ns = (now_ns / ASLEEP_BEAT_NS + 1) * ASLEEP_BEAT_NS;

	device->beat_ns = UINT64_MAX;
	for (int number = 0; number < CARD_TENANTS; number++) {
		struct place *place = device->places[number];

		if (!place)
			continue;
		const struct gate *decided = card_gate(device->card, number);
		/* Before the mode: a gate that has just closed is not a dead scheduler's. */
		gate_beat(place->gate, place->work->said_busy_ns, awake ? now_ns : asleep_until_ns);
		gate_write(place->gate, decided, &place->before);
		if (decided->mode != GPUSHARE_GATE_CLOSED)
			place->closed_ns = 0;
		else if (!place->closed_ns)
			place->closed_ns = now_ns;
		if (decided->mode != GPUSHARE_GATE_OPEN)
			device->beat_ns = awake ? now_ns + BEAT_NS : asleep_until_ns;
	}
}

/* Windows of who has several cards are open together: a decision here may ask for one elsewhere. */
static void align_gangs(const struct device *device)
{
	for (int number = 0; number < CARD_TENANTS; number++) {
		const struct place *place = device->places[number];
		struct gang_place places[GPUSHARE_MAX_CARDS];
		struct device *devices_of[GPUSHARE_MAX_CARDS];
		uint32_t count = 0;

		if (!place || place->tenant->card_count < 2)
			continue;
		for (uint32_t card = 0; card < place->tenant->card_count; card++) {
			const struct place *one = &place->tenant->places[card];
			if (!one->device)
				continue;
			devices_of[count] = one->device;
			places[count++] = (struct gang_place){one->device->card, one->number};
		}
		const uint32_t changed = gang_align(places, count);
		for (uint32_t at = 0; at < count; at++)
			if (changed >> at & 1)
				devices_of[at]->rung = true;
	}
}

static void decide(struct device *device, uint64_t now_ns)
{
	device->rung = false;
	see(device, now_ns);
	uint64_t due_ns = card_decide(device->card, now_ns);
	device->due_ns = due_ns < now_ns + SOONEST_NS ? now_ns + SOONEST_NS : due_ns;
	write_gates(device, now_ns);
	align_gangs(device);
}

uint64_t devices_decide(uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;

	for (struct device *device = devices; device < devices + DEVICES_MAX; device++) {
		if (!device->count)
			continue;
		if (device->rung || device->due_ns <= now_ns || device->beat_ns <= now_ns)
			decide(device, now_ns);
		if (device->due_ns < next_ns)
			next_ns = device->due_ns;
		if (device->beat_ns < next_ns)
			next_ns = device->beat_ns;
	}
	/* Of a gang, one that was looked at before: it is looked at again at once. */
	for (struct device *device = devices; device < devices + DEVICES_MAX; device++)
		if (device->count && device->rung)
			next_ns = now_ns;
	return next_ns;
}
