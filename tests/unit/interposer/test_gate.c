/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch gate over the simulator: what it lets pass, what it counts, and whom it tells.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "gate_program.h"
#include "tenant.h"

#define MARKER_NS (500 * MICROSECOND)

static void nothing_is_counted_while_open(void)
{
	gate_set(GPUSHARE_GATE_OPEN);
	for (int i = 0; i < 100; i++)
		launch(10 * MICROSECOND);
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
	CHECK(own_work().submitted == 0 && own_work().busy_ns == 0);
	CHECK(bell_count() == 0);
}

static void metered_counts_and_rings(void)
{
	gate_set(GPUSHARE_GATE_METERED);
	const struct work before = own_work();
	const uint64_t served = served_ns();
	for (int i = 0; i < 100; i++)
		launch(100 * MICROSECOND);
	until_idle();
	const struct work after = own_work();
	CHECK(after.submitted - before.submitted == 100);
	CHECK(after.pending_ns == 0);
	const uint64_t busy = after.busy_ns - before.busy_ns;
	const uint64_t truth = served_ns() - served;
	CHECK(truth == 100 * 100 * MICROSECOND);
	CHECK(busy >= truth);
	CHECK(bell_count() >= 2); /* begun, and ended */
}

static void *launch_one(void *unused)
{
	gate_program_enter();
	launch(100 * MICROSECOND);
	return unused;
}

static void closed_waits(void)
{
	pthread_t threads[3];

	bell_count();
	gate_set(GPUSHARE_GATE_CLOSED);
	const struct work before = own_work();
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, launch_one, NULL) == 0);
	until_waiting(3);
	CHECK(bell_count() == 1);
	CHECK(own_work().submitted == before.submitted);
	gate_set(GPUSHARE_GATE_WINDOW);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	until_idle();
	CHECK(own_work().submitted == before.submitted + 3);
	CHECK(own_work().throttled_ns > before.throttled_ns);
	CHECK(own_work().forced == before.forced);
}

static void window_bounds(void)
{
	uint64_t most = 0;

	gate_set(GPUSHARE_GATE_WINDOW);
	for (int i = 0; i < 300; i++) {
		launch(100 * MICROSECOND);
		const uint64_t pending = own_work().pending_ns;
		most = pending > most ? pending : most;
	}
	until_idle();
	CHECK(most > 0 && most <= the_gate()->in_flight_max_ns);
}

/* How much more was counted than the card has served; less by a marker at the most. */
static uint64_t counted_too_much(void)
{
	const uint64_t served = served_ns(), busy = own_work().busy_ns;

	for (int i = 0; i < 300; i++)
		launch(100 * MICROSECOND);
	until_idle();
	const uint64_t truth = served_ns() - served, counted = own_work().busy_ns - busy;
	CHECK(truth == 300 * 100 * MICROSECOND && counted + MARKER_NS >= truth);
	return counted > truth ? counted - truth : 0;
}

/* Where this thread was off the processor the card ran dry, and that counts as busy. */
static void what_is_counted_is_what_was_served(void)
{
	gate_set(GPUSHARE_GATE_WINDOW);
	while (counted_too_much() > MARKER_NS)
		;
}

int main(void)
{
	gate_prepare();
	gate_program_start();
	TEST(nothing_is_counted_while_open, "an open gate counts nothing and rings no bell");
	TEST(metered_counts_and_rings, "a metered gate counts what passes, and tells when work "
				       "begins and when all has ended");
	TEST(closed_waits, "a closed gate lets nobody pass, and rings once for all who wait");
	TEST(window_bounds, "a window holds what is pending to its bound");
	TEST(what_is_counted_is_what_was_served,
		"the time that is counted is what the card has served, within a marker");
	return 0;
}
