/* SPDX-License-Identifier: Apache-2.0
 *
 * The share that a tenant keeps to while no scheduler is there, on a clock of the test's own.
 */
#include "share/self_throttle.h"

#include "expect.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static struct gpushare_gate gate;
static struct self_throttle throttle;

static void gate_make(uint32_t permille, uint64_t heartbeat_ns, uint64_t busy_ns)
{
	gate = (struct gpushare_gate){.self_throttle_permille = permille,
		.in_flight_max_ns = 2 * MILLISECOND,
		.heartbeat_ns = heartbeat_ns,
		.busy_ns = busy_ns};
	throttle = (struct self_throttle){0};
}

static void a_beat_is_old_after_its_time(void)
{
	gate_make(300, 10 * SECOND, 0);
	EXPECT(!gate_is_stale(&gate, 10 * SECOND + GPUSHARE_GATE_STALE_NS));
	EXPECT(gate_is_stale(&gate, 10 * SECOND + GPUSHARE_GATE_STALE_NS + 1));
	EXPECT(!gate_is_stale(&gate, 9 * SECOND)); /* seen by another processor a moment ago */
	gate_make(300, 0, 0);
	EXPECT(gate_is_stale(&gate, 1));
}

/* Pieces of `piece_ns`, each begun when it may; the card time of all of them at the end. */
static uint64_t used_in(uint64_t time_ns, uint64_t piece_ns)
{
	const uint64_t begun_ns = 10 * SECOND + GPUSHARE_GATE_STALE_NS;
	uint64_t now_ns = begun_ns, used_ns = 0;

	for (;;) {
		const uint64_t when_ns =
			self_throttle_start_ns(&throttle, &gate, now_ns, used_ns, piece_ns);
		if (when_ns > now_ns)
			now_ns = when_ns;
		if (now_ns >= begun_ns + time_ns)
			return used_ns;
		used_ns += piece_ns;
	}
}

static void it_gets_its_share_and_no_more_than_a_burst_beyond(void)
{
	static const uint64_t pieces[] = {10000, 700000, 2 * MILLISECOND, 50 * MILLISECOND};

	for (unsigned i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		gate_make(300, 10 * SECOND, 0);
		const uint64_t used_ns = used_in(10 * SECOND, pieces[i]);
		const uint64_t most = pieces[i] > 2 * MILLISECOND ? pieces[i] : 2 * MILLISECOND;
		EXPECT(used_ns <= 3 * SECOND + most + pieces[i]);
		EXPECT(used_ns + pieces[i] + GPUSHARE_GATE_STALE_NS >= 3 * SECOND);
	}
}

int main(void)
{
	a_beat_is_old_after_its_time();
	it_gets_its_share_and_no_more_than_a_burst_beyond();
	return 0;
}
