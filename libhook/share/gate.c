/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include "channel/log.h"
#include "quota/pages.h"

static const _Atomic uint32_t always_open = GPUSHARE_GATE_OPEN;
static const _Atomic uint32_t look_at_each = UINT32_MAX;

const _Atomic uint32_t *_Atomic gate_word =
	&always_open; /* before cuInit there is nothing to launch */

void gate_watch(void)
{
	atomic_store(&gate_word, pages.card_count == 1 ? &grant_card(0)->gate.mode : &look_at_each);
}

/* Whoever closes gates without libraries that wait at them must hear of it. */
bool gate_enter(struct gate_work *work)
{
	static _Atomic uint32_t said;

	(void)work;
	for (unsigned card = 0; card < pages.card_count; card++) {
		uint32_t mode =
			atomic_load_explicit(&grant_card(card)->gate.mode, memory_order_relaxed);
		if (mode != GPUSHARE_GATE_OPEN &&
			!(atomic_fetch_or(&said, 1u << card) & 1u << card))
			log_line(LOG_ERROR,
				"card %u: this library cannot wait at a gate in mode %u", card,
				mode);
	}
	return false;
}

void gate_leave(struct gate_work *work, bool submitted)
{
	(void)work;
	(void)submitted;
}
