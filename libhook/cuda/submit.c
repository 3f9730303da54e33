/* SPDX-License-Identifier: Apache-2.0 */
#include "submit.h"

#include "capture.h"
#include "cards.h"
#include "timing_context_end.h"
#include "quota/pages.h"

/* With a single card, the driver is not called. If no card can be found, the driver is about to
 * refuse the call; should it not, the work must not be free: it counts on the first card. */
static unsigned card_of(CUstream stream)
{
	CUdevice device;
	unsigned card = 0;

	if (pages.card_count == 1)
		return 0;
	if (device_of_stream(&device, stream) == CUDA_SUCCESS)
		card_of_device(&card, device);
	return card;
}

/* With several cards: while no gate is closed, the card of a stream is not looked up. */
static bool is_open_everywhere(void)
{
	for (unsigned card = 0; card < pages.card_count; card++)
		if (atomic_load_explicit(&grant_card(card)->gate.mode, memory_order_relaxed) !=
			GPUSHARE_GATE_OPEN)
			return false;
	return true;
}

bool submit_enter(struct gate_work *work)
{
	if (pages.card_count > 1 && is_open_everywhere())
		return false;
	if (captures_are_open() && stream_is_captured(work->stream,
					   work->per_thread ? NULL_IS_PER_THREAD : NULL_IS_LEGACY))
		return false;
	work->card = card_of(work->stream);
	return gate_enter(work);
}

CUresult submit_leave_waited(struct gate_work *work, bool counted, CUresult result)
{
	submit_leave(work, counted, result);
	if (counted && result == CUDA_SUCCESS) {
		timing_before_wait();
		timing_after_wait(WAIT_OTHER);
	}
	return result;
}

_Static_assert(GPUSHARE_GATE_OPEN == 0, "as trampoline.h looks for it");
