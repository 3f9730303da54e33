/* SPDX-License-Identifier: Apache-2.0 */
#include "alone.h"

/* What is given at once after a time of idleness, where the gate does not say it. */
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

/* From the last beat on; from now on where there was none. */
static void begin(struct alone *alone, const struct gpushare_gate *gate, uint64_t beat,
	uint64_t now_ns, uint64_t used_ns)
{
	*alone = (struct alone){.heartbeat_ns = beat,
		.since_ns = beat ? beat : now_ns,
		.busy_ns = beat ? atomic_load_explicit(&gate->busy_ns, memory_order_relaxed)
				: used_ns};
}

uint64_t alone_when(struct alone *alone, const struct gpushare_gate *gate, uint64_t now_ns,
	uint64_t used_ns, uint64_t estimate_ns)
{
	const uint64_t permille =
		least(WHOLE, atomic_load_explicit(&gate->alone_permille, memory_order_relaxed));
	const uint64_t beat = atomic_load_explicit(&gate->heartbeat_ns, memory_order_relaxed);
	uint64_t burst = atomic_load_explicit(&gate->in_flight_max_ns, memory_order_relaxed);

	if (permille == 0)
		return now_ns;
	if (burst == 0)
		burst = BURST_NS;
	if (alone->since_ns == 0 || alone->heartbeat_ns != beat)
		begin(alone, gate, beat, now_ns, used_ns);
	if (used_ns < alone->busy_ns) /* a process has ended, and its figures with it */
		alone->busy_ns = used_ns;
	/* How long it takes to earn what was used; what was not used is not kept for later. */
	const uint64_t earned_ns = alone->since_ns + (used_ns - alone->busy_ns) * WHOLE / permille;
	if (earned_ns < now_ns) {
		alone->since_ns = now_ns;
		alone->busy_ns = used_ns;
	}
	/* A piece longer than a burst is begun with nothing owed, and owed for afterwards. */
	const uint64_t ahead_ns = (burst - least(burst, estimate_ns)) * WHOLE / permille;
	return earned_ns > ahead_ns ? earned_ns - ahead_ns : 0;
}
