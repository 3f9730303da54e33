/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that are killed in the middle: their locks, their places and what they held.
 */
#include "device_file.h"
#include "engine.h"
#include "expect.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sim_share *own_share(void)
{
	return &device->cards[0].shares[tag_process(process_tag())];
}

/* Run `body` in a child that has its own place, and kill the child when it has returned. */
static void in_killed_child(void (*body)(struct sim_card *card))
{
	int ready[2];
	char byte;
	pid_t child;

	EXPECT_EQUAL(pipe(ready), 0);
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		EXPECT_EQUAL(device_attach_child(), DEVICE_READY);
		body(&device->cards[0]);
		EXPECT_EQUAL(write(ready[1], "x", 1), 1);
		for (;;)
			pause();
	}
	close(ready[1]);
	EXPECT_EQUAL(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void stop_between_two_writes(struct sim_card *card)
{
	card_lock(card);
	own_share()->used_bytes += 30 * MIB; /* and the card's sum not yet */
}

static void a_lock_is_taken_over_from_the_dead_and_the_sum_made_again(void)
{
	struct sim_card *card = &device->cards[0];

	in_killed_child(stop_between_two_writes);
	card_lock(card);
	EXPECT_EQUAL(atomic_load(&card->used_bytes), 30 * MIB);
	card_reap(card);
	EXPECT_EQUAL(atomic_load(&card->used_bytes), 0);
	card_unlock(card);
}

static void take_all(struct sim_card *card)
{
	card_lock(card);
	own_share()->contexts = 1;
	EXPECT(engine_context_new(card));
	EXPECT(card_reserve(card, (CARD_BYTES - RESERVED_BYTES)));
	EXPECT(!card_reserve(card, 1));
	card_unlock(card);
}

static void what_the_dead_held_is_not_what_a_reservation_is_refused_for(void)
{
	struct sim_card *card = &device->cards[0];

	in_killed_child(take_all);
	card_lock(card);
	EXPECT_EQUAL(atomic_load(&card->used_bytes), (CARD_BYTES - RESERVED_BYTES));
	EXPECT(card_reserve(card, (CARD_BYTES - RESERVED_BYTES)));
	card_release(card, (CARD_BYTES - RESERVED_BYTES));
	EXPECT_EQUAL(atomic_load(&card->used_bytes), 0);
	for (uint32_t i = 0; i < card->contexts_high; i++)
		EXPECT_EQUAL(atomic_load(&card->contexts[i].owner), 0);
	card_unlock(card);
}

static void look(struct sim_card *card)
{
	EXPECT_EQUAL(atomic_load(&card->used_bytes), 0);
	EXPECT_EQUAL(own_share()->used_bytes, 0);
	EXPECT_EQUAL(own_share()->contexts, 0);
}

static void a_place_is_inherited_empty(void)
{
	uint32_t high;

	in_killed_child(take_all);
	high = atomic_load(&device->processes_high);
	in_killed_child(look);
	EXPECT_EQUAL(atomic_load(&device->processes_high), high); /* the same place again */
}

static void a_tag_of_the_dead_is_never_a_living_ones(void)
{
	uint64_t tag = process_tag();

	EXPECT(process_alive(tag, NULL));
	EXPECT(!process_alive(tag + (UINT64_C(1) << 16), NULL));
	EXPECT(!process_alive(tag - (UINT64_C(1) << 16), NULL));
}

int main(void)
{
	device_file_make();
	EXPECT_EQUAL(device_attach(), DEVICE_READY);
	a_tag_of_the_dead_is_never_a_living_ones();
	a_lock_is_taken_over_from_the_dead_and_the_sum_made_again();
	what_the_dead_held_is_not_what_a_reservation_is_refused_for();
	a_place_is_inherited_empty();
	return 0;
}
