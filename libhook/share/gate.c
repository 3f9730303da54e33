/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches at a gate that is not open. gate_wait.c is for launches that may not pass yet.
 *
 * A launch that passes reads no clock and makes no system call: it takes its card's lock once and
 * adds to a sum. Everything more expensive happens only for the first unit of work of a busy
 * period, for work that has no estimate, and once every timing_interval_ns.
 */
#include "gate.h"

#include <stddef.h>

#include "work_account.h"
#include "wakeup.h"
#include "clock.h"
#include "gate_wait.h"
#include "timing_events.h"
#include "quota/pages.h"

static const _Atomic uint32_t always_open = GPUSHARE_GATE_OPEN;
static const _Atomic uint32_t never_evicted = 0;
static const _Atomic uint32_t look_at_each = UINT32_MAX;

/* Before cuInit there is nothing to launch. */
struct gate_line gate_line = {.word = &always_open, .evicted = &never_evicted};

_Static_assert(offsetof(struct gate_line, first) == 8 && offsetof(struct gate_line, cards) == 16 &&
		       offsetof(struct gate_line, evicted) == 40 && sizeof(struct gate_line) == 64,
	"as trampoline.h reads it, and one cache line");
_Static_assert(GPUSHARE_GRANT_CARD_OFFSET(1) - GPUSHARE_GRANT_CARD_OFFSET(0) == 4096,
	"as trampoline.h goes from card to card");

void gate_watch(void)
{
	for (unsigned card = 0; card < pages.card_count; card++) {
		const struct gpushare_gate *gate = &grant_card(card)->gate;
		struct work_account *account = &work_accounts[card];
		spinlock_lock(&account->lock); /* several threads may call cuInit first */
		account->epoch = atomic_load(&gate->epoch);
		account->may_have_been_open = atomic_load(&gate->mode) == GPUSHARE_GATE_OPEN;
		spinlock_unlock(&account->lock);
	}
	atomic_store(&gate_line.processes, &pages.status->high_water);
	atomic_store(&gate_line.first, &grant_card(0)->gate.mode);
	atomic_store(&gate_line.cards, pages.card_count == 1 ? 0 : pages.card_count);
	atomic_store(
		&gate_line.word, pages.card_count == 1 ? &grant_card(0)->gate.mode : &look_at_each);
}

void gate_watch_eviction(bool watch)
{
	atomic_store(&gate_line.evicted, watch ? &pages.grant->evicted : &never_evicted);
}

void gate_open_for_good(void)
{
	atomic_store(&gate_line.word, &always_open);
}

bool gate_is_open_for_good(void)
{
	return atomic_load_explicit(&gate_line.word, memory_order_relaxed) == &always_open;
}

/* Kept out of the way of launches that find everything in place. */
#define RARELY __attribute__((noinline, cold))

/* With the lock, which is released in between. False: this process cannot count. */
RARELY static bool open_work_account(struct work_account *account, unsigned card)
{
	spinlock_unlock(&account->lock);
	const bool opened = work_account_open(account, card);
	spinlock_lock(&account->lock);
	return opened && account->page;
}

/* With the lock, which is released in between. */
RARELY static void meet_stream(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	spinlock_unlock(&account->lock);
	const bool is_stream = timing_add_stream(work);
	spinlock_lock(&account->lock);
	if (is_stream && !timing_has_stream(work))
		gate_wait_for_stream(account, gate, work);
}

/* Work without an estimate is measured by itself: one timing event before it and one after it. */
RARELY static void close_stream(struct work_account *account, const struct gate_work *work)
{
	spinlock_unlock(&account->lock);
	timing_close(work);
	spinlock_lock(&account->lock);
}

/* Whether the gate may have been open since the last check, with launches that were not counted. */
static void look_at_epoch(struct work_account *account, const struct gpushare_gate *gate)
{
	const uint32_t epoch = atomic_load_explicit(&gate->epoch, memory_order_relaxed);

	account->may_have_been_open |= epoch - account->epoch > 1;
	account->epoch = epoch;
}

/* The first unit of work of a busy period. With the lock. */
RARELY static void begin_busy(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	const uint64_t now_ns = clock_ns();

	look_at_epoch(account, gate);
	account->is_unscheduled = gate_is_stale(gate, now_ns);
	work_account_begin_busy(account, work->estimate_ns, now_ns);
	timing_add_work(work, gate_timing_interval_ns(gate), true);
	account->may_have_been_open = false;
}

/* The steps before the driver is called. */
static void before(const struct gate_work *work, uint32_t mode)
{
	timing_before(work);
	if (mode == GPUSHARE_GATE_METERED)
		wakeup_send(); /* a metered launch does not wait, so nothing else wakes the
				  scheduler */
}

static void estimate(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	work->place = estimate_place(&account->estimates, work->kind, work->what, work->size);
	work->estimate_ns = estimate_of(&account->estimates, &account->estimates.place[work->place],
		gate_timing_interval_ns(gate));
}

/* With the lock. False: the gate is open, or this process cannot count; the lock is released. */
static bool may_enter(struct work_account *account, const struct gpushare_gate *gate,
	struct gate_work *work, uint32_t *mode)
{
	if (!account->page && !open_work_account(account, work->card)) {
		spinlock_unlock(&account->lock);
		return false;
	}
	estimate(account, gate, work);
	if (gate_may_pass(account, gate, *mode, work))
		return true;
	*mode = gate_wait(account, gate, work);
	if (*mode != GPUSHARE_GATE_OPEN)
		return true;
	spinlock_unlock(&account->lock);
	return false;
}

/* With the lock, which is released: handles every case. */
RARELY static bool enter_slowly(struct work_account *account, const struct gpushare_gate *gate,
	struct gate_work *work, uint32_t mode)
{
	if (!may_enter(account, gate, work, &mode))
		return false;
	if (!timing_find_stream(work))
		meet_stream(account, gate, work);
	if (account->estimates.place[work->place].samples == 0 && timing_is_open(work))
		close_stream(account, work);
	const bool was_idle = work_account_is_idle(account);
	if (was_idle) {
		begin_busy(account, gate, work);
	} else {
		work_account_begin(account, work->estimate_ns);
		timing_add_work(work, gate_timing_interval_ns(gate), false);
	}
	spinlock_unlock(&account->lock);
	if (was_idle)
		before(work, mode);
	return true;
}

/* With the lock: whether work of that estimate only has to be added to the group of the stream:
 * that of the previous launch, whose group has begun and continues. */
static inline bool may_join(const struct stream_state *state, uint64_t key,
	const struct estimate *known, const struct gpushare_gate *gate)
{
	return state && state->key == key && state->is_plain && state->open.pieces > 0 &&
	       known->samples > 0 &&
	       state->open.estimate_ns + known->ns < gate_timing_interval_ns(gate);
}

__attribute__((always_inline)) static inline void join(struct work_account *account,
	struct stream_state *state, uint16_t place, uint64_t estimate_ns)
{
	work_account_begin(account, estimate_ns);
	group_add(&state->open, place, estimate_ns);
	state->added++;
}

/* With the lock. */
static inline bool enter_at_once(struct work_account *account, const struct gpushare_gate *gate,
	struct gate_work *work, uint32_t mode)
{
	struct stream_state *state = account->stream;

	if (!state)
		return false;
	work->place = estimate_place(&account->estimates, work->kind, work->what, work->size);
	const struct estimate *known = &account->estimates.place[work->place];
	work->estimate_ns = known->ns;
	if (!may_join(state, work->key, known, gate) || !gate_may_pass(account, gate, mode, work))
		return false;
	join(account, state, work->place, known->ns);
	work->stream_place = state->place;
	work->generation = state->generation;
	return true;
}

static inline uint64_t key_of(const struct gate_work *work)
{
	if (!gate_is_default_stream(work))
		return (uintptr_t)work->stream;
	if (gate_is_legacy_stream(work) &&
		atomic_load_explicit(&gate_line.contexts, memory_order_relaxed) <= 1)
		return STREAM_KEY_LEGACY;
	return timing_default_stream(work);
}

bool gate_enter(struct gate_work *work)
{
	if (work->card >= pages.card_count)
		return false;
	const struct gpushare_gate *gate = &grant_card(work->card)->gate;
	struct work_account *account = &work_accounts[work->card];
	const uint32_t mode = atomic_load_explicit(&gate->mode, memory_order_relaxed);

	if (mode == GPUSHARE_GATE_OPEN || gate_is_open_for_good())
		return false;
	work->key = key_of(work);
	work->timing = 0;
	spinlock_lock(&account->lock);
	if (__builtin_expect(!enter_at_once(account, gate, work, mode), 0))
		return enter_slowly(account, gate, work, mode);
	spinlock_unlock(&account->lock);
	return true;
}

_Static_assert(offsetof(struct gpushare_gate, mode) == 0, "gate_pass takes one for the other");

bool gate_pass(enum gate_kind kind, const void *what, uint64_t size, void *stream, bool per_thread)
{
	/* With several cards, and when the gate is open for good, it has another value. */
	const _Atomic uint32_t *word = atomic_load_explicit(&gate_line.word, memory_order_relaxed);
	const struct gpushare_gate *gate = (const struct gpushare_gate *)(const void *)word;
	const uint32_t mode = atomic_load_explicit(word, memory_order_relaxed);
	const bool is_default = (uintptr_t)stream <= 2;
	const uint64_t key = is_default ? STREAM_KEY_LEGACY : (uintptr_t)stream;
	const uint32_t form = estimate_form(kind, size);
	const uint16_t place = (uint16_t)(estimate_hash(what, form) % ESTIMATES);
	struct work_account *account = &work_accounts[0];
	const struct estimate *known = &account->estimates.place[place];

	/* Calculated before the lock is taken, and not after it. */
	__asm__ volatile("" : "+r"(known));
	__builtin_prefetch(known);
	if (mode == GPUSHARE_GATE_WINDOW
			? atomic_load_explicit(
				  atomic_load_explicit(&gate_line.processes, memory_order_relaxed),
				  memory_order_relaxed) > 1
			: mode != GPUSHARE_GATE_METERED)
		return false;
	if (is_default &&
		((stream ? (uintptr_t)stream != 1 : per_thread) ||
			atomic_load_explicit(&gate_line.contexts, memory_order_relaxed) > 1))
		return false;
	if (!spinlock_try(&account->lock))
		return false;
	struct stream_state *state = account->stream;
	const bool passes = known->form == form && known->what == what &&
			    may_join(state, key, known, gate) && !account->is_unscheduled &&
			    (mode == GPUSHARE_GATE_METERED ||
				    account->pending_ns + known->ns <=
					    atomic_load_explicit(
						    &gate->in_flight_max_ns, memory_order_relaxed));
	if (passes)
		join(account, state, place, known->ns);
	spinlock_unlock(&account->lock);
	return passes;
}

RARELY static void take_back(struct gate_work *work)
{
	struct work_account *account = &work_accounts[work->card];

	spinlock_lock(&account->lock);
	const bool taken_back = timing_take_back(work);
	if (taken_back)
		work_account_withdraw(account, work->estimate_ns);
	const bool is_idle = work_account_is_idle(account);
	spinlock_unlock(&account->lock);
	if (taken_back && is_idle)
		wakeup_send();
}

/* The clock is read here anyway, so this is a good place to check whether the scheduler is
 * alive. */
RARELY static void mark(const struct gate_work *work)
{
	const struct gpushare_gate *gate = &grant_card(work->card)->gate;
	struct work_account *account = &work_accounts[work->card];

	timing_after(work);
	const bool is_unscheduled = gate_is_stale(gate, clock_ns());
	spinlock_lock(&account->lock);
	account->is_unscheduled = is_unscheduled;
	spinlock_unlock(&account->lock);
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
		spinlock_lock(&work_accounts[card].lock);
		if (work_accounts[card].page)
			estimate_forget(&work_accounts[card].estimates, what);
		spinlock_unlock(&work_accounts[card].lock);
	}
}

void gate_before_fork(void)
{
	wakeup_before_fork();
	work_accounts_before_fork();
}

void gate_after_fork_in_parent(void)
{
	work_accounts_after_fork_in_parent();
	wakeup_after_fork();
}

void gate_after_fork_in_child(void)
{
	work_accounts_after_fork_in_child();
	timing_after_fork_in_child();
	wakeup_after_fork();
}
