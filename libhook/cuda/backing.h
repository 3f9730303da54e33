/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the driver takes from a card in bulk and suballocates: for a pool, or for a device's
 * graphs. Only the driver knows how much it takes and when it releases some, so the ledger holds
 * what the driver last reported:
 *
 *     uint64_t reserved = ...as much more as the call may need;
 *     if (!backing_reserve(backing, reserved))
 *             return CUDA_ERROR_OUT_OF_MEMORY;
 *     ...the call...
 *     if (!backing_settle(backing, &reserved)) {
 *             ...undo it: the driver took more than that, and the quota has no room for it...
 *             backing_count(backing, reserved);
 *     }
 */
#ifndef GPUSHARE_BACKING_H
#define GPUSHARE_BACKING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

struct backing;

struct backing_calls {
	/* How much the driver holds, in bytes; false if it does not report it. */
	bool (*held)(const struct backing *backing, uint64_t *bytes);
	/* Make the driver release unused memory. */
	void (*trim)(struct backing *backing);
	/* A context was destroyed, and with it the driver's memory here. */
	void (*emptied)(struct backing *backing);
	/* Nothing is held any more. Returns whether the driver will never hold anything again, so
	 * that the backing may be freed. */
	bool (*is_over)(const struct backing *backing);
};

struct backing {
	const struct backing_calls *calls;
	enum gpushare_kind kind;
	unsigned card;
	_Atomic uint64_t live;	      /* handed out; the rest of what is held is retained */
	_Atomic uint64_t charged;     /* what the driver held when it was last queried */
	_Atomic uint64_t outstanding; /* reserved in addition, for calls that are in the driver */
	_Atomic uint32_t calls_with_driver; /* that will settle */
	_Atomic uint64_t threshold; /* what the driver retains when the program synchronizes */
	struct backing *next;
};

/* Register a backing that has its functions, kind, card and threshold set, and is 0 otherwise. It
 * is freed when it is over. */
void backing_begin(struct backing *backing);

/* Reserve `bytes`, which may be 0, before calling the driver; false if the quota has no room for
 * them. Must be followed by one of the next two. */
bool backing_reserve(struct backing *backing, uint64_t bytes);

/* After the call: charge what the driver holds now, and release the part of *reserved that it did
 * not need. False, with *reserved still reserved, if it took more than the quota has room for. */
bool backing_settle(struct backing *backing, uint64_t *reserved);

/* Like backing_settle, but charge whatever the driver holds. */
void backing_count(struct backing *backing, uint64_t reserved);

/* The backing may have shrunk. */
void backing_look(struct backing *backing);

/* Between these two, no other thread queries the driver about any backing: a handle may be
 * destroyed. */
void backings_hold(void);
void backings_let_go(void);

/* Bytes of it were freed, some of which the driver may release. */
void backing_freed(struct backing *backing, uint64_t bytes);

/* The same for all backings on `card`: after a call that failed, or that destroyed a context. */
void backings_look(unsigned card);
void backings_after_context(unsigned card);

/* Whether any backing may have shrunk, or may retain more, after the program has synchronized. */
#pragma GCC visibility push(hidden)
extern _Atomic bool backings_may_shrink;
#pragma GCC visibility pop
void backings_look_shrunk(void);

/* After the program synchronized with a stream, an event or a context. */
static inline void backings_after_wait(void)
{
	if (__builtin_expect(atomic_load_explicit(&backings_may_shrink, memory_order_relaxed), 0))
		backings_look_shrunk();
}

void backings_before_fork(void);
void backings_after_fork_in_parent(void);
void backings_after_fork_in_child(void);

#endif
