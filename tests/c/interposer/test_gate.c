/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch gate over the simulator: what it lets pass, what it counts, and which wake-ups it
 * sends.
 */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "gate_program.h"
#include "quota/pages.h"
#include "tenant.h"

#define TIMING_INTERVAL_NS (500 * MICROSECOND)

/* An end is seen a moment before its wake-up: until none has arrived for a while. */
static void until_quiet(void)
{
	const struct timespec moment = {.tv_nsec = 1000000};

	for (int quiet = 0; quiet < 50; quiet = wakeup_count() ? 0 : quiet + 1)
		nanosleep(&moment, NULL);
}

static unsigned next_wakeups(void)
{
	unsigned count;

	while ((count = wakeup_count()) == 0)
		sched_yield();
	return count;
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
	unsigned wakeups = 0; /* begun, and ended */
	while (wakeups < 2)
		wakeups += next_wakeups();
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

	until_quiet();
	gate_set(GPUSHARE_GATE_CLOSED);
	const struct work before = own_work();
	for (int i = 0; i < 3; i++)
		threads[i] = thread_that(launch_one, NULL);
	until_waiting(3);
	CHECK(next_wakeups() == 1);
	CHECK(own_work().submitted == before.submitted);
	gate_set(GPUSHARE_GATE_WINDOW);
	for (int i = 0; i < 3; i++)
		join(threads[i]);
	until_idle();
	CHECK(own_work().submitted == before.submitted + 3);
	CHECK(own_work().throttled_ns > before.throttled_ns);
	CHECK(own_work().forced == before.forced);
}

/* How much more was counted than the card has served; less by one timing event at most. */
static uint64_t counted_too_much(void)
{
	const uint64_t served = served_ns(), busy = own_work().busy_ns;

	for (int i = 0; i < 300; i++)
		launch(100 * MICROSECOND);
	until_idle();
	const uint64_t truth = served_ns() - served, counted = own_work().busy_ns - busy;
	CHECK(truth == 300 * 100 * MICROSECOND && counted + TIMING_INTERVAL_NS >= truth);
	return counted > truth ? counted - truth : 0;
}

/* Where this thread was off the processor the card ran dry, and that counts as busy. */
static void the_counted_time_is_the_served_time(void)
{
	gate_set(GPUSHARE_GATE_WINDOW);
	while (counted_too_much() > TIMING_INTERVAL_NS)
		;
}

/* As another process of the tenant would, under the second number. */
static struct gpushare_work *other_process(void)
{
	atomic_store(&pages.status->high_water, 2);
	return card_work(0, 1);
}

static void other_process_ends(void)
{
	memset(card_work(0, 1), 0, sizeof(struct gpushare_work));
	atomic_store(&pages.status->high_water, 1);
}

static void a_window_is_for_all_processes_together(void)
{
	struct gpushare_work *other = other_process();

	gate_set(GPUSHARE_GATE_WINDOW);
	atomic_store(&other->pending_ns, 2 * MILLISECOND);
	atomic_store(&other->submitted, 1);
	const uint64_t before = own_work().submitted;
	const pthread_t thread = thread_that(launch_one, NULL);
	until_waiting(1);
	CHECK(own_work().submitted == before);
	atomic_store(&other->pending_ns, 0);
	atomic_store(&other->ended, 1);
	join(thread);
	until_idle();
	CHECK(own_work().submitted == before + 1);
	other_process_ends();
}

/* It has joined a group, and nothing takes it out again. */
static void a_launch_that_is_refused_among_others_ends_with_them(void)
{
	gate_set(GPUSHARE_GATE_METERED);
	until_idle();
	const struct work before = own_work();
	const uint64_t served = served_ns();
	launch(5 * MILLISECOND);
	for (int i = 0; i < 3; i++) {
		launch(50 * MICROSECOND);
		CHECK(launch_incompletely() == CUDA_ERROR_INVALID_VALUE);
	}
	until_idle();
	const struct work after = own_work();
	CHECK(after.submitted - before.submitted >= 4 && after.pending_ns == 0);
	CHECK(served_ns() - served == 5 * MILLISECOND + 150 * MICROSECOND);
	/* The program may have been off the processor after it said that it begins. */
	CHECK(after.busy_ns - before.busy_ns >= served_ns() - served);
	CHECK(after.busy_ns - before.busy_ns <= after.since_ns - before.since_ns);
}

/* Programs that wait for each few launches, at a gate that counts: what that costs them, and that
 * their work is still seen and charged when they do otherwise.
 *
 * A wait that comes late, because something else ran meanwhile, begins the count of waits anew:
 * what must happen is tried until it does. */
#define LAUNCHES 4
#define GROUPS 100
#define ENOUGH 50 /* waits after which the meter thread is spared */
#define KERNEL_NS (50 * MICROSECOND)

static void launches(int count)
{
	for (int i = 0; i < count; i++)
		launch(KERNEL_NS);
}

static void groups(int count)
{
	for (int i = 0; i < count; i++) {
		launches(LAUNCHES);
		CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
	}
}

static void work_is_seen_when_the_program_waits_no_more(void)
{
	for (int i = 0; i < 20; i++) {
		groups(ENOUGH);
		launches(i % LAUNCHES + 1);
		until_idle();
		CHECK(own_work().pending_ns == 0);
	}
}

/* More than the window holds: the thread at the gate waits for the end of work that no wait will
 * find. */
static void a_launch_at_the_gate_has_its_room(void)
{
	const uint32_t forced = own_work().forced;

	for (int i = 0; i < 5; i++) {
		groups(ENOUGH);
		launches(400);
		until_idle();
	}
	CHECK(own_work().forced == forced);
}

static void alone_it_keeps_to_its_share(void)
{
	const uint64_t beat = now_ns() - SECOND;

	until_idle();
	gate_set(GPUSHARE_GATE_CLOSED);
	atomic_store(&the_gate()->self_throttle_permille, 250);
	atomic_store(&the_gate()->busy_ns, own_work().busy_ns);
	gate_stop_beating(beat);
	const uint64_t begun = now_ns();
	const uint32_t forced = own_work().forced;
	for (uint64_t given = MILLISECOND; given <= 50 * MILLISECOND; given += MILLISECOND) {
		launch(MILLISECOND);
		/* A burst, the piece that was begun with nothing owed, and what is not seen yet. */
		CHECK(given <= (now_ns() - begun) / 4 + 2 * MILLISECOND + 2 * MILLISECOND);
	}
	CHECK(own_work().forced == forced);
	until_idle();
}

int main(void)
{
	gate_prepare();
	gate_program_start();
	TEST(metered_counts_and_rings);
	TEST(closed_waits);
	TEST(the_counted_time_is_the_served_time);
	TEST(a_window_is_for_all_processes_together);
	TEST(a_launch_that_is_refused_among_others_ends_with_them);
	TEST(work_is_seen_when_the_program_waits_no_more);
	TEST(a_launch_at_the_gate_has_its_room);
	TEST(alone_it_keeps_to_its_share);
	return 0;
}
