/* SPDX-License-Identifier: Apache-2.0
 *
 * Lock order: `books`, then the driver's own locks and the page's lock. It is held while the driver
 * reports what it holds, while it trims before a refusal, and while it destroys a pool; never while
 * bytes are reserved, because that may call back into this file to refresh the figures.
 */
#include "backing.h"

#include <pthread.h>
#include <stdlib.h>

#include "interpose.h"
#include "quota/ledger.h"

_Atomic bool backings_may_shrink;

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;
static struct backing *first;

/* The figure of ledger_note_kept. */
static void note_kept(unsigned card)
{
	uint64_t bytes = 0;

	for (const struct backing *backing = first; backing; backing = backing->next) {
		uint64_t charged = atomic_load(&backing->charged);
		uint64_t live = atomic_load(&backing->live);
		if (backing->card == card && backing->kind == GPUSHARE_KIND_POOL && charged > live)
			bytes += charged - live;
	}
	ledger_note_kept(card, bytes);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Charge `held`. `reserved` of it is reserved for one call and the rest of `outstanding` for other
 * calls, which charge what they took when they settle. Anything beyond was not reserved: the last
 * of the calls that may have taken it counts it. */
static void charge(struct backing *backing, uint64_t held, uint64_t reserved)
{
	uint64_t charged = atomic_load(&backing->charged);
	uint64_t outstanding = atomic_load(&backing->outstanding);
	uint64_t grown = held > charged ? held - charged : 0;
	uint64_t taken = least(grown, reserved);

	if (held < charged)
		ledger_release(backing->card, backing->kind, charged - held);
	if (taken < reserved)
		ledger_release(backing->card, backing->kind, reserved - taken);
	if (grown > outstanding && atomic_load(&backing->calls_with_driver) == 1 &&
		ledger_count(backing->card, backing->kind, grown - outstanding))
		taken += grown - outstanding;
	atomic_store(&backing->charged, (held < charged ? held : charged) + taken);
	atomic_fetch_sub(&backing->outstanding, reserved);
	atomic_fetch_sub(&backing->calls_with_driver, 1);
}

/* If the driver does not report it, everything that a call reserved counts as used. */
static uint64_t held_by(const struct backing *backing, uint64_t reserved)
{
	uint64_t bytes;

	if (backing->calls->held(backing, &bytes))
		return bytes;
	return atomic_load(&backing->charged) + reserved;
}

/* Charge what the driver holds, except memory that was not reserved: return the size of that. */
static uint64_t charge_reserved(struct backing *backing, uint64_t reserved)
{
	uint64_t missing = 0;

	pthread_mutex_lock(&books);
	uint64_t held = held_by(backing, reserved);
	uint64_t covered = atomic_load(&backing->charged) + atomic_load(&backing->outstanding);
	if (held > covered)
		missing = held - covered;
	else
		charge(backing, held, reserved);
	note_kept(backing->card);
	pthread_mutex_unlock(&books);
	return missing;
}

static bool promise(struct backing *backing, uint64_t bytes)
{
	if (!ledger_reserve(backing->card, backing->kind, bytes))
		return false;
	atomic_fetch_add(&backing->outstanding, bytes);
	return true;
}

bool backing_reserve(struct backing *backing, uint64_t bytes)
{
	if (bytes > 0 && !promise(backing, bytes))
		return false;
	atomic_fetch_add(&backing->calls_with_driver, 1);
	return true;
}

bool backing_settle(struct backing *backing, uint64_t *reserved)
{
	for (;;) {
		uint64_t missing = charge_reserved(backing, *reserved);
		if (missing == 0)
			return true;
		if (!promise(backing, missing))
			return false;
		*reserved += missing;
	}
}

void backing_count(struct backing *backing, uint64_t reserved)
{
	pthread_mutex_lock(&books);
	charge(backing, held_by(backing, reserved), reserved);
	note_kept(backing->card);
	pthread_mutex_unlock(&books);
}

/* Memory that the driver took since then is charged by the calls that are in progress. */
static void look(struct backing *backing)
{
	uint64_t charged = atomic_load(&backing->charged);
	uint64_t held = held_by(backing, 0);

	if (held >= charged)
		return;
	ledger_release(backing->card, backing->kind, charged - held);
	atomic_store(&backing->charged, held);
}

void backing_look(struct backing *backing)
{
	pthread_mutex_lock(&books);
	look(backing);
	note_kept(backing->card);
	pthread_mutex_unlock(&books);
}

void backings_hold(void)
{
	pthread_mutex_lock(&books);
}

void backings_let_go(void)
{
	pthread_mutex_unlock(&books);
}

void backing_freed(struct backing *backing, uint64_t bytes)
{
	/* The last access: with nothing in use, another thread may free the backing of a destroyed
	 * pool. */
	atomic_fetch_sub(&backing->live, bytes);
	/* Also if the threshold lets the driver retain it: then the retained amount is recorded. */
	if (!atomic_load_explicit(&backings_may_shrink, memory_order_relaxed))
		atomic_store(&backings_may_shrink, true);
}

/* Remove those that are over. */
static void drop_ended(void)
{
	for (struct backing **link = &first; *link;) {
		struct backing *backing = *link;
		if (atomic_load(&backing->charged) == 0 && atomic_load(&backing->live) == 0 &&
			atomic_load(&backing->outstanding) == 0 &&
			backing->calls->is_over(backing)) {
			*link = backing->next;
			free(backing);
		} else {
			link = &backing->next;
		}
	}
}

void backings_look(unsigned card)
{
	pthread_mutex_lock(&books);
	for (struct backing *backing = first; backing; backing = backing->next)
		if (backing->card == card)
			look(backing);
	note_kept(card);
	drop_ended();
	pthread_mutex_unlock(&books);
}

void backings_after_context(unsigned card)
{
	pthread_mutex_lock(&books);
	for (struct backing *backing = first; backing; backing = backing->next) {
		if (backing->card != card)
			continue;
		look(backing);
		if (atomic_load(&backing->charged) == 0)
			backing->calls->emptied(backing);
	}
	note_kept(card);
	drop_ended();
	pthread_mutex_unlock(&books);
}

void backings_look_shrunk(void)
{
	bool cards[GPUSHARE_MAX_CARDS] = {false};
	bool more = false;

	pthread_mutex_lock(&books);
	atomic_store(&backings_may_shrink, false); /* before checking: a free may come in between */
	for (struct backing *backing = first; backing; backing = backing->next) {
		uint64_t threshold = atomic_load(&backing->threshold);
		cards[backing->card] = true;
		if (atomic_load(&backing->charged) <= threshold)
			continue;
		look(backing);
		/* Some of what is free was in use when the program last synchronized. */
		uint64_t charged = atomic_load(&backing->charged);
		more |= charged > threshold && charged > atomic_load(&backing->live);
	}
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (cards[card])
			note_kept(card);
	drop_ended();
	pthread_mutex_unlock(&books);
	if (more)
		atomic_store(&backings_may_shrink, true);
}

/* If a card is full, the driver releases what pools retain before it refuses; the same holds for a
 * quota. Other threads may be capturing: these calls must not end a capture. */
static void trim_before_refusal(unsigned card)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	pthread_mutex_lock(&books);
	for (struct backing *backing = first; backing; backing = backing->next) {
		if (backing->card != card)
			continue;
		if (atomic_load(&backing->charged) > 0)
			backing->calls->trim(backing);
		look(backing);
	}
	note_kept(card);
	drop_ended();
	pthread_mutex_unlock(&books);
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

void backing_begin(struct backing *backing)
{
	pthread_mutex_lock(&books);
	backing->next = first;
	first = backing;
	pthread_mutex_unlock(&books);
	ledger_before_refusal(trim_before_refusal);
}

void backings_before_fork(void)
{
	pthread_mutex_lock(&books);
}

void backings_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&books);
}

/* Memory of the parent's driver does not belong to the child. The list's memory is leaked: it may
 * come from a malloc whose state the child does not have. */
void backings_after_fork_in_child(void)
{
	first = NULL;
	atomic_store(&backings_may_shrink, false);
	pthread_mutex_unlock(&books);
}
