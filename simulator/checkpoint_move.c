/* SPDX-License-Identifier: Apache-2.0
 *
 * A process is restored onto other cards. All that it has refers to its cards by their place in the
 * device file's mapping, so another card is mapped at that place, and its contexts get queues
 * there.
 */
#include "checkpoint.h"

#include "driver.h"
#include "limit.h"

#include <string.h>

/* The card with a UUID, or SIM_CARDS. */
static uint32_t place_of(const uint8_t uuid[16])
{
	for (uint32_t place = 0; place < device->header.card_count; place++) {
		if (memcmp(device->profiles[place].uuid, uuid, 16) == 0)
			return place;
	}
	return SIM_CARDS;
}

/* NVIDIA's driver requires the same chip. */
static bool are_alike(uint32_t place, uint32_t other)
{
	REQUIRE(place < SIM_CARDS && other < SIM_CARDS, false);
	const struct sim_profile *one = &device->profiles[place];
	const struct sim_profile *second = &device->profiles[other];

	return one->pci_device_id == second->pci_device_id && strcmp(one->name, second->name) == 0;
}

/* The card that the request has for the one at `place`, or SIM_CARDS. */
static uint32_t target_of(const struct sim_checkpoint *request, uint32_t place)
{
	for (uint32_t i = 0; i < request->pairs; i++) {
		if (place_of(request->from[i]) == place)
			return place_of(request->to[i]);
	}
	return SIM_CARDS;
}

static bool is_taken(const uint32_t places[SIM_CARDS], const bool chosen[SIM_CARDS], uint32_t place)
{
	for (uint32_t i = 0; i < SIM_CARDS; i++) {
		if (chosen[i] && places[i] == place)
			return true;
	}
	return false;
}

/* The cards that are not named keep their places, or take those that have become free. */
static void complete(uint32_t places[SIM_CARDS], bool chosen[SIM_CARDS])
{
	for (uint32_t i = 0; i < SIM_CARDS; i++) {
		const uint32_t same = card_place(&device->cards[i]);

		if (chosen[i] || is_taken(places, chosen, same))
			continue;
		places[i] = same;
		chosen[i] = true;
	}
	for (uint32_t i = 0, place = 0; i < SIM_CARDS; i++) {
		if (chosen[i])
			continue;
		while (is_taken(places, chosen, place))
			place++;
		places[i] = place;
		chosen[i] = true;
	}
}

/* What the process keeps on a card's record while it is off the cards. */
struct absence {
	uint64_t bytes, contexts;
};

static void take_absence(struct absence *absence, struct sim_card *card)
{
	struct sim_share *own = &card->shares[tag_process(process_tag())];

	card_lock(card);
	*absence = (struct absence){own->evicted_bytes, own->evicted_contexts};
	own->evicted_bytes = own->evicted_contexts = 0;
	card_unlock(card);
}

static void put_absence(const struct absence *absence, struct sim_card *card)
{
	struct sim_share *own = &card->shares[tag_process(process_tag())];

	card_lock(card);
	own->evicted_bytes = absence->bytes;
	own->evicted_contexts = absence->contexts;
	card_unlock(card);
}

static CUresult choose(
	const struct sim_checkpoint *request, uint32_t places[SIM_CARDS], bool *moves)
{
	bool chosen[SIM_CARDS] = {false};

	*moves = false;
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		const uint32_t place = card_place(&device->cards[i]);

		if (!checkpoint_concerns(&device->cards[i]))
			continue;
		places[i] = target_of(request, place);
		REQUIRE(places[i] < SIM_CARDS && !is_taken(places, chosen, places[i]),
			CUDA_ERROR_INVALID_VALUE);
		REQUIRE(are_alike(place, places[i]), CUDA_ERROR_NOT_SUPPORTED);
		chosen[i] = true;
		*moves |= places[i] != place;
	}
	complete(places, chosen);
	return CUDA_SUCCESS;
}

CUresult checkpoint_move(const struct sim_checkpoint *request)
{
	struct absence absences[SIM_CARDS];
	uint32_t places[SIM_CARDS];
	CUresult result;
	bool moves;

	if (request->pairs == 0)
		return CUDA_SUCCESS;
	result = choose(request, places, &moves);
	if (result != CUDA_SUCCESS || !moves)
		return result;
	for (uint32_t i = 0; i < SIM_CARDS; i++)
		take_absence(&absences[i], &device->cards[i]);
	contexts_leave_queues();
	const bool mapped = cards_map(places);

	for (uint32_t i = 0; i < SIM_CARDS; i++)
		put_absence(&absences[i], &device->cards[i]);
	if (!contexts_take_queues())
		return CUDA_ERROR_OUT_OF_MEMORY;
	return mapped ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
