/* SPDX-License-Identifier: Apache-2.0 */
#include "self_throttle.h"

/* Allowed at once after an idle period, unless the gate specifies it. */
#define BURST_NS UINT64_C(2000000)

#define WHOLE 1000 /* permille of a card */

bool gate_is_stale(const struct gpushare_gate *gate, uint64_t now_ns)
{
	const uint64_t beat = atomic_load_explicit(&gate->heartbeat_ns, memory_order_relaxed);

	return beat == 0 || (now_ns > beat && now_ns - beat > GPUSHARE_GATE_STALE_NS);
}

static uint64_t least(uint64_t left, uint64_t right)
{
	return left < right ? left : right;
}

/* From the last heartbeat on, or from now on if there was none. */
static void begin(struct self_throttle *throttle, const struct gpushare_gate *gate, uint64_t beat,
	uint64_t now_ns, uint64_t used_ns)
{
	*throttle = (struct self_throttle){.heartbeat_ns = beat,
		.since_ns = beat ? beat : now_ns,
		.busy_ns = beat ? atomic_load_explicit(&gate->busy_ns, memory_order_relaxed)
				: used_ns};
}

uint64_t self_throttle_start_ns(struct self_throttle *throttle, const struct gpushare_gate *gate,
	uint64_t now_ns, uint64_t used_ns, uint64_t estimate_ns)
{
	const uint64_t permille = least(
		WHOLE, atomic_load_explicit(&gate->self_throttle_permille, memory_order_relaxed));
	const uint64_t beat = atomic_load_explicit(&gate->heartbeat_ns, memory_order_relaxed);
	uint64_t burst = atomic_load_explicit(&gate->in_flight_max_ns, memory_order_relaxed);

	if (permille == 0)
		return now_ns;
	if (burst == 0)
		burst = BURST_NS;
	if (throttle->since_ns == 0 || throttle->heartbeat_ns != beat)
		begin(throttle, gate, beat, now_ns, used_ns);
	if (used_ns < throttle->busy_ns) /* a process has exited, and its figures are gone */
		throttle->busy_ns = used_ns;
	/* The time it takes to earn what was used. Unused time is not saved. */
	const uint64_t earned_ns =
		throttle->since_ns + (used_ns - throttle->busy_ns) * WHOLE / permille;
	if (earned_ns < now_ns) {
		throttle->since_ns = now_ns;
		throttle->busy_ns = used_ns;
	}
	/* Work that is longer than a burst starts when nothing is owed, and is paid for afterwards.
	 */
	const uint64_t ahead_ns = (burst - least(burst, estimate_ns)) * WHOLE / permille;
	return earned_ns > ahead_ns ? earned_ns - ahead_ns : 0;
}
