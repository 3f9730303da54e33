/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs that wait for each few launches, at a gate that counts: what that costs them, and that
 * their work is still seen and charged when they do otherwise.
 *
 * A wait that comes late, because something else ran meanwhile, begins the count of waits anew:
 * what must happen is tried until it does.
 */
#include <time.h>

#include "gate_program.h"
#include "tenant.h"

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

static void sleep_for(uint64_t ns)
{
	const struct timespec time = {.tv_nsec = (long)ns};

	nanosleep(&time, NULL);
}

/* A group has an event at its start and one at its end, which its wait records. */
static void a_group_has_two_events(void)
{
	uint64_t events;

	do {
		const uint64_t before = recorded_events();
		groups(GROUPS);
		events = recorded_events() - before;
		CHECK(events >= 2 * GROUPS);
	} while (events > 2 * GROUPS + GROUPS / 2);
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

/* The card is idle between the work and the wait: that is charged once at most. */
static void a_late_wait_is_charged_little(void)
{
	uint64_t truth, charged;

	do {
		groups(ENOUGH);
		const uint64_t served = served_ns(), busy = own_work().busy_ns;
		for (int i = 0; i < 20; i++) {
			launches(LAUNCHES);
			sleep_for(5 * MILLISECOND);
			CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
		}
		truth = served_ns() - served;
		charged = own_work().busy_ns - busy;
		CHECK(truth == 20 * LAUNCHES * KERNEL_NS);
		CHECK(charged >= truth / 2);
	} while (charged > 20 * MILLISECOND);
}

static void what_is_charged_is_what_was_served(void)
{
	uint64_t truth, charged;

	do {
		groups(ENOUGH);
		const uint64_t served = served_ns(), busy = own_work().busy_ns;
		groups(GROUPS);
		truth = served_ns() - served;
		charged = own_work().busy_ns - busy;
		CHECK(truth == GROUPS * LAUNCHES * KERNEL_NS);
		CHECK(charged >= truth * 9 / 10);
	} while (charged > truth * 2);
}

int main(void)
{
	gate_prepare();
	gate_program_start();
	gate_set(GPUSHARE_GATE_WINDOW);
	TEST(a_group_has_two_events, "a group that is waited for has two timing events");
	TEST(work_is_seen_when_the_program_waits_no_more,
		"the end of work is seen when the program waits no more");
	TEST(a_launch_at_the_gate_has_its_room,
		"a launch that waits for room at the gate has it after such waits as well");
	TEST(a_late_wait_is_charged_little, "the time between work and a late wait is not charged");
	TEST(what_is_charged_is_what_was_served, "what is charged is what the card served");
	return 0;
}
