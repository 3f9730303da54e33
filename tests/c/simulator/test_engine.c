/* SPDX-License-Identifier: Apache-2.0
 *
 * How a card's time is divided, told by a clock that only the tests move.
 */
#include "engine.h"
#include "expect.h"

#include <string.h>
#include <sys/mman.h>

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)
#define START (100 * MS)

static struct sim_card *card;

/* A card that stands idle at START, in memory: no file, and so nobody to be found dead. */
static void new_card(void)
{
	if (device)
		munmap(device, sizeof(*device));
	device = mmap(NULL, sizeof(*device), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EXPECT(device != MAP_FAILED);
	device->profiles[0].slice_ns = 2 * MS;
	device->profiles[0].switch_preempt_ns = 160 * US;
	device->profiles[0].switch_drained_ns = 30 * US;
	device->profiles[0].memory_bytes = UINT64_C(1) << 30;
	atomic_store(&device->processes_high, 8);
	card = &device->cards[0];
	engine_settle(card, START);
	card->looked_ns = UINT64_MAX / 2; /* never again */
}

static struct sim_context *context_of(uint64_t process)
{
	struct sim_context *context = engine_context_new(card);

	EXPECT(context);
	atomic_store(&context->owner, UINT64_C(1) << 16 | (process + 1));
	return context;
}

static void submit(struct sim_context *context, uint64_t duration)
{
	atomic_fetch_add(&context->submitted_ns, duration);
}

static uint64_t served(struct sim_context *context)
{
	return atomic_load(&context->served_ns);
}

static void two_busy_contexts_take_turns_of_a_slice_with_a_switch_between(void)
{
	struct sim_context *one, *other;

	new_card();
	one = context_of(0);
	other = context_of(1);
	submit(one, 10000 * MS);
	submit(other, 10000 * MS);
	engine_settle(card, START + 10 * US);
	EXPECT_EQUAL(served(one) + served(other), 10 * US);
	engine_settle(card, START + 2 * 2160 * US);
	EXPECT(served(one) > 0 && served(other) > 0);
	engine_settle(card, START + 1000 * 2160 * US);
	/* 2 ms of every 2.16, as evenly as whole slices can be. */
	EXPECT_EQUAL(served(one) + served(other), 2000 * MS);
	EXPECT(served(one) <= served(other) + 2 * MS && served(other) <= served(one) + 2 * MS);
}

static void a_marker_is_reached_at_the_moment_its_work_ends(void)
{
	struct sim_context *context;
	uint64_t first, second;

	new_card();
	context = context_of(0);
	first = engine_marker_add(context, START);
	submit(context, 3 * MS);
	second = engine_marker_add(context, START);
	submit(context, 3 * MS);
	EXPECT_EQUAL(atomic_load(&context->markers[first].reached_ns), START);
	EXPECT_EQUAL(atomic_load(&context->markers[second].reached_ns), 0);
	engine_settle(card, START + 5 * MS);
	EXPECT_EQUAL(atomic_load(&context->markers[second].reached_ns), START + 3 * MS);
}

static void the_least_wait_is_never_longer_than_the_wait(void)
{
	struct sim_context *one, *other;
	uint64_t now = START;

	new_card();
	one = context_of(0);
	other = context_of(1);
	submit(one, 20 * MS);
	submit(other, 20 * MS);
	engine_settle(card, now);
	while (served(other) < 20 * MS) {
		uint64_t wait = engine_least_wait(card, other, 20 * MS);

		EXPECT(wait > 0);
		engine_settle(card, now + wait - 1);
		EXPECT(served(other) < 20 * MS);
		now += wait;
		engine_settle(card, now);
	}
	EXPECT_EQUAL(engine_least_wait(card, other, 20 * MS), 0);
}

static void busy_is_the_share_of_the_last_second(void)
{
	struct sim_context *context;

	new_card();
	context = context_of(3);
	engine_settle(card, 10000 * MS);
	submit(context, 400 * MS);
	engine_settle(card, 11000 * MS);
	EXPECT_EQUAL(busy_percent(&card->busy, 11000 * MS), 40);
	EXPECT_EQUAL(busy_percent(&card->shares[3].busy, 11000 * MS), 40);
	EXPECT_EQUAL(busy_percent(&card->shares[2].busy, 11000 * MS), 0);
	engine_settle(card, 12200 * MS);
	EXPECT_EQUAL(busy_percent(&card->busy, 12200 * MS), 0);
}

int main(void)
{
	two_busy_contexts_take_turns_of_a_slice_with_a_switch_between();
	a_marker_is_reached_at_the_moment_its_work_ends();
	the_least_wait_is_never_longer_than_the_wait();
	busy_is_the_share_of_the_last_second();
	return 0;
}
