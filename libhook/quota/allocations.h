/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process was given and was charged for: from the driver's handle (a device pointer, a
 * physical memory handle, a context) to card and bytes, so that a free gives back exactly.
 *
 * Any thread may use a table at any time. The memory is the table's own (mmap): the caller may be
 * inside a malloc of its own.
 */
#ifndef GPUSHARE_ALLOCATIONS_H
#define GPUSHARE_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

struct allocation {
	uint64_t handle; /* never 0 */
	uint64_t bytes;
	uint64_t owner; /* what it ends with or belongs to, as the table's user has it */
	uint16_t card;
	uint16_t kind;	     /* enum gpushare_kind */
	uint32_t references; /* or marks, as the table's user has it */
};

#define ALLOCATION_SHARDS 64

struct allocations {
	struct allocation_shard {
		_Alignas(64) _Atomic bool locked;
		uint32_t count;
		uint32_t capacity; /* a power of two, or 0 */
		struct allocation *entries;
	} shards[ALLOCATION_SHARDS];
};

/* Enter `allocation`. `stale` receives what stood under the same handle (the driver gave the handle
 * again, so that memory is gone), bytes 0 if nothing did. False: no memory for the table. */
bool allocations_add(
	struct allocations *table, const struct allocation *allocation, struct allocation *stale);

/* Take the entry of `handle` out; false if there is none. Before the driver frees it: after, it may
 * have given the same handle to another thread already. */
bool allocations_take(struct allocations *table, uint64_t handle, struct allocation *taken);

/* As allocations_take, but leave it in. */
bool allocations_find(struct allocations *table, uint64_t handle, struct allocation *found);

/* The entry of whose [handle, handle + bytes) `address` is one. Looks at all entries, unless it is
 * the first address of one: for calls that are rare or seldom mean another. */
bool allocations_find_at(struct allocations *table, uint64_t address, struct allocation *found);

/* Set the bits `set` of the entry's references and clear `clear`. `before` receives what it was;
 * false if there is none. */
bool allocations_mark(struct allocations *table, uint64_t handle, uint32_t set, uint32_t clear,
	struct allocation *before);

/* Take out all that `ends` says ended. It is called with the shard's lock held: it may add up what
 * it sees in `which`, and call nobody. */
void allocations_take_all(struct allocations *table,
	bool (*ends)(const struct allocation *allocation, void *which), void *which);

/* Empty the table, in a forked child: whatever state another thread of the parent had it in. */
void allocations_forget(struct allocations *table);

#endif
