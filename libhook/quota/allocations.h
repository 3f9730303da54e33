/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocations of this process and their charges: maps the driver's handle (a device pointer, a
 * physical memory handle, a context) to card and bytes, so that a free releases exactly what was
 * charged.
 *
 * Any thread may use a table at any time. The table allocates its own memory (mmap), because the
 * caller may be inside its own malloc.
 */
#ifndef GPUSHARE_ALLOCATIONS_H
#define GPUSHARE_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

struct allocation {
	uint64_t handle; /* never 0 */
	uint64_t bytes;
	uint64_t owner; /* defined by the table's user: what the allocation ends with or belongs to
			 */
	uint16_t card;
	uint16_t kind;	     /* enum gpushare_kind */
	uint32_t references; /* or flags, defined by the table's user */
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

/* Add `allocation`. `stale` receives the previous entry of the same handle, with bytes 0 if
 * there was none (the driver reused the handle, so that memory is gone). False: no memory for
 * the table. */
bool allocations_add(
	struct allocations *table, const struct allocation *allocation, struct allocation *stale);

/* Remove the entry of `handle`; false if there is none. Call it before the driver frees the handle:
 * afterwards, the driver may already have given the same handle to another thread. */
bool allocations_take(struct allocations *table, uint64_t handle, struct allocation *taken);

/* Like allocations_take, but leave the entry in the table. */
bool allocations_find(struct allocations *table, uint64_t handle, struct allocation *found);

/* The entry whose [handle, handle + bytes) contains `address`. Searches all entries unless
 * `address` is the start of one: for calls that are rare or rarely use an inner address. */
bool allocations_find_at(struct allocations *table, uint64_t address, struct allocation *found);

/* Set the bits `set` of the entry's references and clear `clear`. `before` receives the previous
 * entry; false if there is none. */
bool allocations_mark(struct allocations *table, uint64_t handle, uint32_t set, uint32_t clear,
	struct allocation *before);

/* Remove all entries for which `ends` returns true. `ends` is called with the shard's lock held: it
 * may accumulate in `which` and must not call anything else. */
void allocations_take_all(struct allocations *table,
	bool (*ends)(const struct allocation *allocation, void *which), void *which);

/* Empty the table in a forked child, whatever state another thread of the parent left it in. */
void allocations_forget(struct allocations *table);

#endif
