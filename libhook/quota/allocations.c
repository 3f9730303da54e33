/* SPDX-License-Identifier: Apache-2.0
 *
 * Open addressing with linear probing, in shards that grow automatically. Removing an entry moves
 * the following ones back, so there are no tombstones to search through.
 *
 * Lock order: a shard's lock is a leaf; only the kernel is called while it is held.
 */
#include "allocations.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* 8 KiB. In a table that is nearly empty, a look-up seldom probes twice: a branch that the
 * processor mispredicts costs more than the memory. */
#define FIRST_CAPACITY 256

/* Handles are multiples of 256 or more, or small numbers, or heap addresses: Fibonacci hashing
 * spreads all of them. The upper bits select the shard, the next ones the slot in it. */
static uint64_t hash(uint64_t handle)
{
	return handle * UINT64_C(0x9e3779b97f4a7c15);
}

static struct allocation_shard *shard_of(struct allocations *table, uint64_t handle)
{
	return &table->shards[hash(handle) >> 58];
}

static uint32_t home(const struct allocation_shard *shard, uint64_t handle)
{
	return (uint32_t)(hash(handle) >> 26) & (shard->capacity - 1);
}

/* The lock is held for less time than a look-up takes, so a few iterations are enough, unless its
 * holder was preempted, perhaps by this thread: a thread of real-time priority that only yielded
 * would never let the holder run. */
#define SPINS 256

static void pause_thread(void)
{
	const struct timespec pause = {.tv_nsec = 20000};
	int saved = errno, cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation); /* callers hold locks */
	nanosleep(&pause, NULL);
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}

static void shard_lock(struct allocation_shard *shard)
{
	while (atomic_exchange_explicit(&shard->locked, true, memory_order_acquire))
		for (int spins = 0; atomic_load_explicit(&shard->locked, memory_order_relaxed);
			spins++)
			if (spins >= SPINS)
				pause_thread();
}

static void shard_unlock(struct allocation_shard *shard)
{
	atomic_store_explicit(&shard->locked, false, memory_order_release);
}

/* The entry of `handle`, or the empty slot where it belongs. The shard is never full. */
static struct allocation *place(const struct allocation_shard *shard, uint64_t handle)
{
	uint32_t mask = shard->capacity - 1;
	uint32_t i = home(shard, handle);

	while (shard->entries[i].handle != 0 && shard->entries[i].handle != handle)
		i = (i + 1) & mask;
	return &shard->entries[i];
}

static size_t shard_bytes(const struct allocation_shard *shard)
{
	return shard->capacity * sizeof(struct allocation);
}

static bool shard_grow(struct allocation_shard *shard)
{
	struct allocation_shard grown = {
		.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY};

	grown.entries = mmap(NULL, shard_bytes(&grown), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (grown.entries == MAP_FAILED)
		return false;
	for (uint32_t i = 0; i < shard->capacity; i++)
		if (shard->entries[i].handle != 0)
			*place(&grown, shard->entries[i].handle) = shard->entries[i];
	if (shard->capacity)
		munmap(shard->entries, shard_bytes(shard));
	shard->entries = grown.entries;
	shard->capacity = grown.capacity;
	return true;
}

static void shard_remove(struct allocation_shard *shard, struct allocation *entry)
{
	uint32_t mask = shard->capacity - 1;
	uint32_t hole = (uint32_t)(entry - shard->entries);

	for (uint32_t i = (hole + 1) & mask; shard->entries[i].handle != 0; i = (i + 1) & mask) {
		uint32_t wanted = home(shard, shard->entries[i].handle);
		/* Whether the hole lies between the entry's home slot and its current slot. */
		if (((i - wanted) & mask) >= ((i - hole) & mask)) {
			shard->entries[hole] = shard->entries[i];
			hole = i;
		}
	}
	shard->entries[hole].handle = 0;
	shard->count--;
}

bool allocations_add(
	struct allocations *table, const struct allocation *allocation, struct allocation *stale)
{
	struct allocation_shard *shard = shard_of(table, allocation->handle);
	bool room = true;

	stale->bytes = 0;
	shard_lock(shard);
	if (shard->count >= shard->capacity / 4 * 3)
		room = shard_grow(shard) || shard->count + 1 < shard->capacity;
	if (room) {
		struct allocation *entry = place(shard, allocation->handle);
		if (entry->handle != 0)
			*stale = *entry;
		else
			shard->count++;
		*entry = *allocation;
	}
	shard_unlock(shard);
	return room;
}

static bool look_up(
	struct allocations *table, uint64_t handle, struct allocation *found, bool remove)
{
	struct allocation_shard *shard = shard_of(table, handle);
	bool is_there = false;

	if (handle == 0)
		return false;
	shard_lock(shard);
	if (shard->capacity) {
		struct allocation *entry = place(shard, handle);
		is_there = entry->handle == handle;
		if (is_there)
			*found = *entry;
		if (is_there && remove)
			shard_remove(shard, entry);
	}
	shard_unlock(shard);
	return is_there;
}

bool allocations_take(struct allocations *table, uint64_t handle, struct allocation *taken)
{
	return look_up(table, handle, taken, true);
}

bool allocations_find(struct allocations *table, uint64_t handle, struct allocation *found)
{
	return look_up(table, handle, found, false);
}

static bool contains(const struct allocation *entry, uint64_t address)
{
	return entry->handle != 0 && address - entry->handle < entry->bytes;
}

bool allocations_find_at(struct allocations *table, uint64_t address, struct allocation *found)
{
	bool is_there = allocations_find(table, address, found);

	for (unsigned s = 0; s < ALLOCATION_SHARDS && !is_there; s++) {
		struct allocation_shard *shard = &table->shards[s];
		shard_lock(shard);
		for (uint32_t i = 0; i < shard->capacity && !is_there; i++) {
			is_there = contains(&shard->entries[i], address);
			if (is_there)
				*found = shard->entries[i];
		}
		shard_unlock(shard);
	}
	return is_there;
}

bool allocations_mark(struct allocations *table, uint64_t handle, uint32_t set, uint32_t clear,
	struct allocation *before)
{
	struct allocation_shard *shard = shard_of(table, handle);
	bool is_there = false;

	if (handle == 0)
		return false;
	shard_lock(shard);
	if (shard->capacity) {
		struct allocation *entry = place(shard, handle);
		is_there = entry->handle == handle;
		if (is_there) {
			*before = *entry;
			entry->references = (entry->references | set) & ~clear;
		}
	}
	shard_unlock(shard);
	return is_there;
}

void allocations_take_all(struct allocations *table,
	bool (*ends)(const struct allocation *allocation, void *which), void *which)
{
	for (unsigned s = 0; s < ALLOCATION_SHARDS; s++) {
		struct allocation_shard *shard = &table->shards[s];
		shard_lock(shard);
		for (uint32_t i = 0; i < shard->capacity; i++) {
			struct allocation *entry = &shard->entries[i];
			/* Removing an entry may move another one here, even one from beyond the
			 * end. An entry that wrapped around may therefore be visited twice if it
			 * stays. */
			while (entry->handle != 0 && ends(entry, which))
				shard_remove(shard, entry);
		}
		shard_unlock(shard);
	}
}

void allocations_forget(struct allocations *table)
{
	for (unsigned s = 0; s < ALLOCATION_SHARDS; s++) {
		struct allocation_shard *shard = &table->shards[s];
		/* Locked at the fork, it may have been half way through growing: leave its memory.
		 */
		if (!shard->locked && shard->capacity)
			munmap(shard->entries, shard_bytes(shard));
		memset(shard, 0, sizeof(*shard));
	}
}
