/* SPDX-License-Identifier: Apache-2.0
 *
 * What a launch does at a gate that is not open. gate_wait.c is for those that may not pass yet.
 *
 * A launch that passes reads no clock and asks nobody: it takes its card's lock once, and what it
 * leaves behind is a sum. Everything that costs more is for the first piece of a busy time, for one
 * that nothing is known of, and for one in so many (marker_ns).
 */
#include "gate.h"

#include "account.h"
#include "bell.h"
#include "clock.h"
#include "gate_wait.h"
#include "markers.h"
#include "quota/pages.h"

static const _Atomic uint32_t always_open = GPUSHARE_GATE_OPEN;
static const _Atomic uint32_t look_at_each = UINT32_MAX;

const _Atomic uint32_t *_Atomic gate_word =
	&always_open; /* before cuInit there is nothing to launch */

void gate_watch(void)
{
	for (unsigned card = 0; card < pages.card_count; card++) {
		const struct gpushare_gate *gate = &grant_card(card)->gate;
		struct account *account = &accounts[card];
		spin_take(&account->lock); /* several threads may begin with cuInit */
		account->epoch = atomic_load(&gate->epoch);
		account->may_have_been_open = atomic_load(&gate->mode) == GPUSHARE_GATE_OPEN;
		spin_drop(&account->lock);
	}
	atomic_store(&gate_word, pages.card_count == 1 ? &grant_card(0)->gate.mode : &look_at_each);
}

void gate_open_for_good(void)
{
	atomic_store(&gate_word, &always_open);
}

bool gate_is_open_for_good(void)
{
	return atomic_load_explicit(&gate_word, memory_order_relaxed) == &always_open;
}

/* Out of the way of launches that find everything in its place. */
#define RARELY __attribute__((noinline, cold))

/* With the lock, and dropped in between. False: this process cannot count. */
RARELY static bool open_account(struct account *account, unsigned card)
{
	spin_drop(&account->lock);
	const bool opened = account_open(account, card);
	spin_take(&account->lock);
	return opened && account->page;
}

RARELY static void meet_stream(struct account *account, struct gate_work *work)
{
	spin_drop(&account->lock);
	markers_meet(work);
	spin_take(&account->lock);
}

/* One of which nothing is known is measured by itself: a marker before it, and one behind it. */
RARELY static void close_stream(struct account *account, const struct gate_work *work)
{
	spin_drop(&account->lock);
	markers_close(work);
	spin_take(&account->lock);
}

/* Whether the gate may have been open since somebody looked last, with launches that nobody
 * counted. */
static void look_at_epoch(struct account *account, const struct gpushare_gate *gate)
{
	const uint32_t epoch = atomic_load_explicit(&gate->epoch, memory_order_relaxed);

	account->may_have_been_open |= epoch - account->epoch > 1;
	account->epoch = epoch;
}

/* The first piece of a busy time. With the lock. */
RARELY static void begin_busy(
	struct account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	const uint64_t now_ns = clock_ns();

	look_at_epoch(account, gate);
	account->is_alone = gate_is_stale(gate, now_ns);
	account_begin_busy(account, work->estimate_ns, now_ns);
	markers_add(work, gate_marker_ns(gate), true);
	account->may_have_been_open = false;
}

/* What is to be done before the driver is called. */
static void before(const struct gate_work *work, uint32_t mode)
{
	markers_before(work);
	if (mode == GPUSHARE_GATE_METERED)
		bell_ring(); /* it does not wait, so nobody else tells */
}

static void estimate(
	struct account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	work->place = estimate_place(&account->estimates, work->kind, work->what, work->size);
	const struct estimate *known = &account->estimates.place[work->place];
	work->estimate_ns = known->samples > 0 ? known->ns : gate_marker_ns(gate);
}

/* With the lock. False: open, or nobody can count; the lock is dropped. */
static bool may_enter(struct account *account, const struct gpushare_gate *gate,
	struct gate_work *work, uint32_t *mode)
{
	if (!account->page && !open_account(account, work->card)) {
		spin_drop(&account->lock);
		return false;
	}
	estimate(account, gate, work);
	if (gate_may_pass(account, gate, *mode, work))
		return true;
	*mode = gate_wait(account, gate, work);
	if (*mode != GPUSHARE_GATE_OPEN)
		return true;
	spin_drop(&account->lock);
	return false;
}

/* With the lock, which is dropped: whatever a launch may meet. */
RARELY static bool enter_slowly(struct account *account, const struct gpushare_gate *gate,
	struct gate_work *work, uint32_t mode)
{
	if (!may_enter(account, gate, work, &mode))
		return false;
	if (!markers_know(work))
		meet_stream(account, work);
	if (account->estimates.place[work->place].samples == 0 && markers_are_open(work))
		close_stream(account, work);
	const bool was_idle = account_is_idle(account);
	if (was_idle) {
		begin_busy(account, gate, work);
	} else {
		account_begin(account, work->estimate_ns);
		markers_add(work, gate_marker_ns(gate), false);
	}
	spin_drop(&account->lock);
	if (was_idle)
		before(work, mode);
	return true;
}

/* With the lock: on the stream of the launch before, whose group has begun and goes on. */
static inline bool enter_at_once(struct account *account, const struct gpushare_gate *gate,
	struct gate_work *work, uint32_t mode)
{
	struct lane *lane = account->lane;

	if (!lane || lane->key != work->key || !lane->is_plain || lane->open.pieces == 0)
		return false;
	work->place = estimate_place(&account->estimates, work->kind, work->what, work->size);
	const struct estimate *known = &account->estimates.place[work->place];
	work->estimate_ns = known->ns;
	if (known->samples == 0 || lane->open.estimate_ns + known->ns >= gate_marker_ns(gate) ||
		!gate_may_pass(account, gate, mode, work))
		return false;
	account_begin(account, known->ns);
	group_add(&lane->open, work->place, known->ns);
	lane->added++;
	work->stream_place = lane->place;
	work->generation = lane->generation;
	return true;
}

static inline uint64_t key_of(const struct gate_work *work)
{
	if (!gate_is_default_stream(work))
		return (uintptr_t)work->stream;
	if (gate_is_legacy_stream(work) &&
		atomic_load_explicit(&gate_contexts, memory_order_relaxed) <= 1)
		return LANE_LEGACY;
	return markers_default_stream(work);
}

bool gate_enter(struct gate_work *work)
{
	if (work->card >= pages.card_count)
		return false;
	const struct gpushare_gate *gate = &grant_card(work->card)->gate;
	struct account *account = &accounts[work->card];
	const uint32_t mode = atomic_load_explicit(&gate->mode, memory_order_relaxed);

	if (mode == GPUSHARE_GATE_OPEN || gate_is_open_for_good())
		return false;
	work->key = key_of(work);
	work->marks = 0;
	spin_take(&account->lock);
	if (__builtin_expect(!enter_at_once(account, gate, work, mode), 0))
		return enter_slowly(account, gate, work, mode);
	spin_drop(&account->lock);
	return true;
}

RARELY static void take_back(struct gate_work *work)
{
	struct account *account = &accounts[work->card];

	spin_take(&account->lock);
	const bool taken_back = markers_take_back(work);
	if (taken_back)
		account_withdraw(account, work->estimate_ns);
	const bool is_idle = account_is_idle(account);
	spin_drop(&account->lock);
	if (taken_back && is_idle)
		bell_ring();
}

/* The clock is read here anyway: a good place to see whether a scheduler is still there. */
RARELY static void mark(const struct gate_work *work)
{
	const struct gpushare_gate *gate = &grant_card(work->card)->gate;
	struct account *account = &accounts[work->card];

	markers_after(work);
	const bool is_alone = gate_is_stale(gate, clock_ns());
	spin_take(&account->lock);
	account->is_alone = is_alone;
	spin_drop(&account->lock);
}

void gate_leave_slowly(struct gate_work *work, bool submitted)
{
	if (submitted)
		mark(work);
	else
		take_back(work);
}

void gate_forget(const void *what)
{
	for (unsigned card = 0; card < pages.card_count; card++) {
		spin_take(&accounts[card].lock);
		if (accounts[card].page)
			estimate_forget(&accounts[card].estimates, what);
		spin_drop(&accounts[card].lock);
	}
}

void gate_before_fork(void)
{
	bell_before_fork();
	accounts_before_fork();
}

void gate_after_fork_in_parent(void)
{
	accounts_after_fork_in_parent();
	bell_after_fork();
}

void gate_after_fork_in_child(void)
{
	accounts_after_fork_in_child();
	markers_after_fork_in_child();
	bell_after_fork();
}
