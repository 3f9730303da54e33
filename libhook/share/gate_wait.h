/* SPDX-License-Identifier: Apache-2.0
 *
 * May it pass, and if not, until it may.
 */
#ifndef GPUSHARE_GATE_WAIT_H
#define GPUSHARE_GATE_WAIT_H

#include "account.h"
#include "gate.h"
#include "quota/pages.h"

bool gate_is_open_for_good(void);

/* More than one look: other processes are summed, or nobody tells how much is allowed. */
bool gate_may_pass_slowly(struct account *account, const struct gpushare_gate *gate, uint32_t mode,
	const struct gate_work *work);

/* With the account's lock. */
static inline bool gate_may_pass(struct account *account, const struct gpushare_gate *gate,
	uint32_t mode, const struct gate_work *work)
{
	if (__builtin_expect(account->is_alone, 0))
		return gate_may_pass_slowly(account, gate, mode, work);
	if (mode == GPUSHARE_GATE_METERED)
		return true;
	return mode == GPUSHARE_GATE_WINDOW && process_count() <= 1 &&
			       account->pending_ns + work->estimate_ns <=
				       atomic_load_explicit(
					       &gate->in_flight_max_ns, memory_order_relaxed)
		       ? true
		       : gate_may_pass_slowly(account, gate, mode, work);
}

/* With the account's lock, dropped meanwhile. Returns the mode in which it passes. */
uint32_t gate_wait(
	struct account *account, const struct gpushare_gate *gate, struct gate_work *work);

#endif
