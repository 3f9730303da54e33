/* SPDX-License-Identifier: Apache-2.0 */
#include "timing_event.h"

static bool has_slot(const struct card_timing *card, CUcontext handle)
{
	for (unsigned place = 0; place < TIMING_CONTEXTS; place++)
		if (card->contexts[place].handle == handle || !card->contexts[place].handle)
			return true;
	return false;
}

static bool has_work(const struct card_timing *card, unsigned place)
{
	for (unsigned stream = 0; stream < TIMING_STREAMS; stream++)
		if (card->streams[stream].state.key != 0 &&
			card->streams[stream].context == place && stream_is_in_use(card, stream))
			return true;
	return false;
}

/* The context's streams are idle: they get slots again when they have work. */
static void vacate(struct card_timing *card, unsigned place, struct timing_context *vacated)
{
	struct timing_context *context = &card->contexts[place];

	for (unsigned stream = 0; stream < TIMING_STREAMS; stream++)
		if (card->streams[stream].state.key != 0 && card->streams[stream].context == place)
			stream_end(card, (uint8_t)stream);
	*vacated = *context;
	*context = (struct timing_context){.generation = vacated->generation + 1};
}

void context_make_room(unsigned number, CUcontext handle)
{
	struct card_timing *card = &card_timing[number];
	struct timing_context vacated = {.handle = NULL};

	spinlock_lock(&work_accounts[number].lock);
	if (!has_slot(card, handle)) {
		/* Not always the same one: contexts that are used in turn would lose it to each
		 * other. */
		for (unsigned step = 0; step < TIMING_CONTEXTS && !vacated.handle; step++) {
			const unsigned place = card->next_vacated++ % TIMING_CONTEXTS;
			if (!card->contexts[place].is_ending && !has_work(card, place))
				vacate(card, place, &vacated);
		}
	}
	spinlock_unlock(&work_accounts[number].lock);
	if (!vacated.handle)
		return;
	if (vacated.last)
		REAL(cuEventDestroy_v2)(vacated.last);
	while (vacated.spare_count > 0)
		REAL(cuEventDestroy_v2)(vacated.spare[--vacated.spare_count]);
}

uint8_t context_place(struct card_timing *card, CUcontext handle, bool is_created)
{
	unsigned found = NO_CONTEXT;

	for (unsigned place = 0; place < TIMING_CONTEXTS; place++) {
		if (card->contexts[place].handle == handle)
			return (uint8_t)place;
		if (!card->contexts[place].handle && found == NO_CONTEXT)
			found = place;
	}
	if (found != NO_CONTEXT) {
		card->contexts[found].handle = handle;
		card->contexts[found].is_created = is_created;
	}
	return (uint8_t)found;
}

CUevent event_spare(struct timing_context *context)
{
	return context->spare_count > 0 ? context->spare[--context->spare_count] : NULL;
}

CUevent event_get(unsigned card, uint8_t place)
{
	spinlock_lock(&work_accounts[card].lock);
	CUevent event = event_spare(&card_timing[card].contexts[place]);
	spinlock_unlock(&work_accounts[card].lock);
	if (!event && REAL(cuEventCreate)(&event, 0) != CUDA_SUCCESS)
		return NULL;
	return event;
}

void event_put(unsigned card, uint8_t place, uint32_t generation, CUevent event)
{
	struct timing_context *context = &card_timing[card].contexts[place];
	bool kept = false;

	if (!event)
		return;
	spinlock_lock(&work_accounts[card].lock);
	/* The events of a destroyed context are gone with it. */
	const bool is_gone = context->generation != generation;
	if (!is_gone && context->spare_count < SPARE_EVENTS) {
		context->spare[context->spare_count++] = event;
		kept = true;
	}
	spinlock_unlock(&work_accounts[card].lock);
	if (!kept && !is_gone)
		REAL(cuEventDestroy_v2)(event);
}
