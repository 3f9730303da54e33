/* SPDX-License-Identifier: Apache-2.0
 *
 * A card's lock and what it guards: the sum of memory and the slots of dead processes. The lock
 * word is the owner's tag rather than a thread's number, because containers have PID namespaces of
 * their own and two processes may share a number; a robust pthread mutex relies on that number.
 */
#include "device.h"

#include "clock.h"
#include "limit.h"
#include "piece.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define LOOK_FOR_DEAD_NS UINT64_C(2000000)

/* The sum is recomputed from its parts: the last owner may have died between updating the two. */
static void card_recount(struct sim_card *card)
{
	uint32_t high = atomic_load(&device->processes_high);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < high; i++)
		sum += card->shares[i].used_bytes;
	atomic_store(&card->used_bytes, sum + pieces_bytes(card));
}

static void card_lock_contended(struct sim_card *card)
{
	const struct timespec pause = {.tv_nsec = 50000};
	uint64_t next_look = clock_ns() + LOOK_FOR_DEAD_NS;

	for (unsigned int tries = 0;; tries++) {
		uint64_t owner = 0;

		if (atomic_compare_exchange_strong(&card->lock, &owner, process_tag()))
			return;
		if (tries < 64)
			sched_yield();
		else
			nanosleep(&pause, NULL);
		if (clock_ns() < next_look)
			continue;
		next_look = clock_ns() + LOOK_FOR_DEAD_NS;
		if (!process_alive(owner, NULL) &&
			atomic_compare_exchange_strong(&card->lock, &owner, process_tag())) {
			card_recount(card);
			return;
		}
	}
}

void card_lock(struct sim_card *card)
{
	uint64_t owner = 0;

	if (!atomic_compare_exchange_strong(&card->lock, &owner, process_tag()))
		card_lock_contended(card);
}

void card_unlock(struct sim_card *card)
{
	atomic_store_explicit(&card->lock, 0, memory_order_release);
}

/* Clear what the slot `process` holds on the card, except the contexts of this process itself. */
static void card_forget(struct sim_card *card, uint32_t process)
{
	memset(&card->shares[process], 0, sizeof(card->shares[process]));
	for (uint32_t i = 0; i < card->contexts_high; i++) {
		uint64_t owner = atomic_load(&card->contexts[i].owner);

		if (owner != 0 && owner != process_tag() && tag_process(owner) == process)
			atomic_store(&card->contexts[i].owner, 0);
	}
	pieces_forget(card, process);
}

void card_inherit(struct sim_card *card)
{
	card_lock(card);
	card_forget(card, tag_process(process_tag()));
	card_recount(card);
	card_unlock(card);
}

void card_reap(struct sim_card *card)
{
	uint32_t high = atomic_load(&device->processes_high);
	uint64_t holders[SIM_PROCESSES / 64];
	bool found = false;

	pieces_holders(card, holders);
	for (uint32_t i = 0; i < high; i++) {
		const struct sim_share *share = &card->shares[i];
		uint64_t tag = atomic_load(&device->processes[i].generation) << 16 | (i + 1);
		bool holds = share->used_bytes != 0 || share->contexts != 0 ||
			     share->evicted_contexts != 0 || holders[i / 64] >> i % 64 & 1;

		/* One system call for each other process that holds something here. */
		if (!holds || tag == process_tag() || process_alive(tag, NULL))
			continue;
		card_forget(card, i);
		found = true;
	}
	if (found)
		card_recount(card);
	card->looked_ns = clock_ns();
}

/* `evicted_bytes` of the managed memory on the card could be in host memory instead. */
static bool fits(struct sim_card *card, uint64_t bytes, uint64_t evicted_bytes)
{
	const uint64_t used_bytes = atomic_load(&card->used_bytes) - evicted_bytes;

	return bytes <= card_usable_bytes(card) - used_bytes &&
	       (card->limits_high == 0 || limits_allow(card, bytes));
}

static uint64_t managed_bytes(const struct sim_card *card)
{
	const uint32_t high = atomic_load(&device->processes_high);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < high; i++)
		bytes += card->shares[i].managed_bytes;
	return bytes;
}

/* Managed memory goes to the host when other memory needs the room, whoever has it, as with
 * NVIDIA's driver. Its owner's regions still count it as on the card: see set_counted. */
static void evict_managed(struct sim_card *card, uint64_t bytes)
{
	const uint32_t high = atomic_load(&device->processes_high);

	for (uint32_t i = 0; i < high && bytes > 0; i++) {
		struct sim_share *share = &card->shares[i];
		uint64_t moved = share->managed_bytes < bytes ? share->managed_bytes : bytes;

		share->managed_bytes -= moved;
		share->used_bytes -= moved;
		atomic_fetch_sub(&card->used_bytes, moved);
		bytes -= moved;
	}
}

bool card_has_room(struct sim_card *card, uint64_t bytes)
{
	if (card->limits_high > 0)
		limits_find_own(card);
	if (fits(card, bytes, 0))
		return true;
	card_reap(card);
	return fits(card, bytes, 0);
}

bool card_reserve(struct sim_card *card, uint64_t bytes)
{
	if (!card_has_room(card, bytes) && !fits(card, bytes, managed_bytes(card)))
		return false;

	const uint64_t free_bytes = card_usable_bytes(card) - atomic_load(&card->used_bytes);

	if (bytes > free_bytes)
		evict_managed(card, bytes - free_bytes);
	card->shares[tag_process(process_tag())].used_bytes += bytes;
	atomic_fetch_add(&card->used_bytes, bytes);
	return true;
}

void card_release(struct sim_card *card, uint64_t bytes)
{
	card->shares[tag_process(process_tag())].used_bytes -= bytes;
	atomic_fetch_sub(&card->used_bytes, bytes);
}
