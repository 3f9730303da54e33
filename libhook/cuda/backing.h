/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the driver takes from a card in bulk and hands out by itself: a pool's, a device's
 * for graphs. Only the driver knows how much it takes and when it gives some back, so the ledger
 * holds what the driver was last heard to hold:
 *
 *     uint64_t reserved = ...as much as the call may need more;
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
	/* How much the driver holds, in bytes; false if it does not say. */
	bool (*held)(const struct backing *backing, uint64_t *bytes);
	/* Have the driver give back what is in no use. */
	void (*trim)(struct backing *backing);
	/* A context ended, and the driver's memory here with it. */
	void (*emptied)(struct backing *backing);
	/* Nothing is held any more: whether the driver will never hold anything again, so that the
	 * backing may be freed. */
	bool (*is_over)(const struct backing *backing);
};

struct backing {
	const struct backing_calls *calls;
	enum gpushare_kind kind;
	unsigned card;
	_Atomic uint64_t live;	   /* handed out; the rest of what is held is kept for later */
	_Atomic uint64_t charged;  /* what the driver held when it was last asked */
	_Atomic uint64_t promised; /* reserved beyond that, for calls that are with the driver */
	_Atomic uint32_t calls_with_driver; /* that will settle */
	_Atomic uint64_t threshold; /* what the driver keeps when the program waits for something */
	struct backing *next;
};

/* Enter one that has its calls, kind, card and threshold, and is 0 else. It is freed when it is
 * over. */
void backing_begin(struct backing *backing);

/* Reserve `bytes`, which may be 0, before the driver is asked; false when the quota has no room for
 * them. To be followed by one of the next two. */
bool backing_reserve(struct backing *backing, uint64_t bytes);

/* After the driver's answer: charge what it holds now, and what of *reserved it did not need give
 * back. False, with *reserved still reserved, when it took more than the quota has room for. */
bool backing_settle(struct backing *backing, uint64_t *reserved);

/* As backing_settle, but charge whatever it holds. */
void backing_count(struct backing *backing, uint64_t reserved);

/* It may have shrunk. */
void backing_look(struct backing *backing);

/* Between these two no other thread asks the driver about any of them: the handle of one can end.
 */
void backings_hold(void);
void backings_let_go(void);

/* Bytes of it were freed, of which the driver may give some back. */
void backing_freed(struct backing *backing, uint64_t bytes);

/* The same of everything on `card`: after a call that failed, or that ended a context. */
void backings_look(unsigned card);
void backings_after_context(unsigned card);

/* Whether any may have shrunk, or keep more, when the program has waited for something. */
#pragma GCC visibility push(hidden)
extern _Atomic bool backings_may_shrink;
#pragma GCC visibility pop
void backings_look_shrunk(void);

/* After a program waited: a stream, an event or a context was synchronized. */
static inline void backings_after_wait(void)
{
	if (__builtin_expect(atomic_load_explicit(&backings_may_shrink, memory_order_relaxed), 0))
		backings_look_shrunk();
}

void backings_before_fork(void);
void backings_after_fork_in_parent(void);
void backings_after_fork_in_child(void);

#endif
