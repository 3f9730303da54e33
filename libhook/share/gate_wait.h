/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether work may pass, and waiting until it may.
 */
#ifndef GPUSHARE_GATE_WAIT_H
#define GPUSHARE_GATE_WAIT_H

#include "work_account.h"
#include "gate.h"
#include "quota/pages.h"

bool gate_is_open_for_good(void);

/* The slower check: sums the tenant's other processes, or applies the self-throttle. */
bool gate_may_pass_slowly(struct work_account *account, const struct gpushare_gate *gate,
	uint32_t mode, const struct gate_work *work);

/* With the account's lock. */
static inline bool gate_may_pass(struct work_account *account, const struct gpushare_gate *gate,
	uint32_t mode, const struct gate_work *work)
{
	if (__builtin_expect(account->is_unscheduled, 0))
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

/* With the account's lock, released meanwhile. Returns the mode in which the work passes. */
uint32_t gate_wait(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work);

/* Wait until a slot for the work's stream is free: the end of work without one cannot be observed.
 * With the lock. */
void gate_wait_for_stream(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work);

#endif
