/* SPDX-License-Identifier: Apache-2.0 */
#include "marker.h"

uint8_t context_place(struct card_markers *card, CUcontext handle, bool is_created)
{
	unsigned found = NO_CONTEXT;

	for (unsigned place = 0; place < MARKER_CONTEXTS; place++) {
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

CUevent event_spare(struct marker_context *context)
{
	return context->spare_count > 0 ? context->spare[--context->spare_count] : NULL;
}

CUevent event_get(unsigned card, uint8_t place)
{
	spin_take(&accounts[card].lock);
	CUevent event = event_spare(&card_markers[card].contexts[place]);
	spin_drop(&accounts[card].lock);
	if (!event && REAL(cuEventCreate)(&event, 0) != CUDA_SUCCESS)
		return NULL;
	return event;
}

void event_put(unsigned card, uint8_t place, uint32_t generation, CUevent event)
{
	struct marker_context *context = &card_markers[card].contexts[place];
	bool kept = false;

	if (!event)
		return;
	spin_take(&accounts[card].lock);
	/* Those of a context that has ended went with it. */
	const bool is_gone = context->generation != generation;
	if (!is_gone && context->spare_count < MARKER_EVENTS) {
		context->spare[context->spare_count++] = event;
		kept = true;
	}
	spin_drop(&accounts[card].lock);
	if (!kept && !is_gone)
		REAL(cuEventDestroy_v2)(event);
}
