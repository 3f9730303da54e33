/* SPDX-License-Identifier: Apache-2.0 */
#include "gate_wait.h"

#include <pthread.h>

#include "bell.h"
#include "clock.h"
#include "futex.h"
#include "markers.h"
#include "quota/members.h"

/* How long at most before somebody who waits looks again by himself: what he waits for may be done
 * by another process, which may end, or be stopped, before it tells. */
#define LOOK_NS UINT64_C(50000000)
/* For what other processes of the tenant have pending: their wake may come between our look and our
 * sleep. */
#define LOOK_AT_OTHERS_NS UINT64_C(1000000)
/* Now and then the dead are looked for, whose work is pending for ever. */
#define REAP_NS UINT64_C(200000000)

enum obstacle {
	OBSTACLE_NONE,
	OBSTACLE_CLOSED,
	OBSTACLE_FULL,
	OBSTACLE_FULL_OF_OTHERS,
	OBSTACLE_ALONE
};

/* What is in the way of a piece of work, and when it may be no more even if nobody tells. */
struct view {
	enum obstacle obstacle;
	uint32_t mode;
	uint64_t until_ns;
};

static bool window_has_room(
	const struct gpushare_gate *gate, const struct account_sum *sum, uint64_t estimate_ns)
{
	const uint32_t least = atomic_load_explicit(&gate->pieces_min, memory_order_relaxed);

	return sum->pieces < (least ? least : 1) ||
	       sum->pending_ns + estimate_ns <=
		       atomic_load_explicit(&gate->in_flight_max_ns, memory_order_relaxed);
}

static void look_alone(struct account *account, const struct gpushare_gate *gate,
	const struct account_sum *sum, const struct gate_work *work, uint64_t now_ns,
	struct view *view)
{
	const uint64_t when_ns = alone_when(
		&account->alone, gate, now_ns, sum->busy_ns + sum->pending_ns, work->estimate_ns);

	if (when_ns <= now_ns)
		return;
	view->obstacle = OBSTACLE_ALONE;
	view->until_ns = when_ns < view->until_ns ? when_ns : view->until_ns;
}

/* With the lock. */
static void look(struct account *account, const struct gpushare_gate *gate,
	const struct gate_work *work, uint64_t now_ns, struct view *view)
{
	struct account_sum sum;

	*view = (struct view){.mode = atomic_load_explicit(&gate->mode, memory_order_relaxed),
		.until_ns = now_ns + LOOK_NS};
	if (view->mode == GPUSHARE_GATE_OPEN || gate_is_open_for_good()) {
		view->mode = GPUSHARE_GATE_OPEN;
		return;
	}
	account->is_alone = gate_is_stale(gate, now_ns);
	if (account->is_alone) {
		account_sum(account, work->card, &sum);
		look_alone(account, gate, &sum, work, now_ns, view);
	} else if (view->mode == GPUSHARE_GATE_CLOSED) {
		view->obstacle = OBSTACLE_CLOSED;
	} else if (view->mode == GPUSHARE_GATE_WINDOW) {
		account_sum(account, work->card, &sum);
		if (window_has_room(gate, &sum, work->estimate_ns))
			return;
		view->obstacle = account_is_idle(account) ? OBSTACLE_FULL_OF_OTHERS : OBSTACLE_FULL;
		if (sum.pieces != account->submitted - account->ended)
			view->until_ns = now_ns + LOOK_AT_OTHERS_NS;
	}
}

bool gate_may_pass_slowly(struct account *account, const struct gpushare_gate *gate, uint32_t mode,
	const struct gate_work *work)
{
	struct view view;

	if (mode == GPUSHARE_GATE_CLOSED)
		return false; /* gate_wait looks again, at the right moment */
	look(account, gate, work, account->is_alone ? clock_ns() : 0, &view);
	return view.obstacle == OBSTACLE_NONE && view.mode == mode;
}

/* With the lock; true for the first thread at a closed gate. */
static bool stand_at_closed(struct account *account, bool *stands, bool closed)
{
	if (*stands == closed)
		return false;
	*stands = closed;
	account->waiting_closed += closed ? 1 : (uint32_t)-1;
	return closed && account->waiting_closed == 1;
}

/* One sleep, without the lock; a wake after `epoch` and `progress` were read is not missed. */
static void sleep_before(struct account *account, const struct gpushare_gate *gate,
	const struct view *view, uint32_t epoch, uint32_t progress, uint64_t deadline_ns)
{
	const uint64_t until_ns = view->until_ns < deadline_ns ? view->until_ns : deadline_ns;

	if (view->obstacle == OBSTACLE_FULL) {
		markers_look_here();
		futex_wait(&account->progress, progress, until_ns, FUTEX_OF_PROCESS);
	} else {
		futex_wait(&gate->epoch, epoch, until_ns, FUTEX_OF_ALL);
	}
}

struct wait {
	uint64_t since_ns, deadline_ns, reap_ns;
	bool stands_at_closed;
};

/* What is behind the last marker must get one, and dead processes must be found: then it ends. */
static void help(
	const struct gate_work *work, struct wait *wait, enum obstacle obstacle, uint64_t now_ns)
{
	if (obstacle == OBSTACLE_FULL)
		markers_close(work);
	if (process_count() > 1 && obstacle != OBSTACLE_CLOSED && now_ns >= wait->reap_ns) {
		wait->reap_ns = now_ns + REAP_NS;
		members_reap();
	}
}

/* Until nothing is in the way or the wait has lasted too long. With the lock. */
static uint32_t wait_out(struct account *account, const struct gpushare_gate *gate,
	struct gate_work *work, struct wait *wait)
{
	for (;;) {
		const uint32_t epoch = atomic_load(&gate->epoch);
		const uint32_t progress = atomic_load(&account->progress);
		const uint64_t now_ns = clock_ns();
		struct view view;

		look(account, gate, work, now_ns, &view);
		const bool is_first = stand_at_closed(
			account, &wait->stands_at_closed, view.obstacle == OBSTACLE_CLOSED);
		if (view.obstacle == OBSTACLE_NONE)
			return view.mode;
		if (now_ns >= wait->deadline_ns) {
			account->forced++;
			return view.mode;
		}
		account_publish(account);
		const bool has_place = markers_know(work);
		spin_drop(&account->lock);
		if (is_first)
			bell_ring();
		if (has_place)
			help(work, wait, view.obstacle, now_ns);
		sleep_before(account, gate, &view, epoch, progress, wait->deadline_ns);
		spin_take(&account->lock);
	}
}

uint32_t gate_wait(
	struct account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	const uint64_t since_ns = clock_ns();
	struct wait wait = {.since_ns = since_ns,
		.deadline_ns = since_ns + atomic_load(&gate->wait_max_ns),
		.reap_ns = since_ns + REAP_NS};
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation); /* it would stay counted */
	account->waiting++;
	atomic_fetch_add(&account->waiting_for_progress, 1);
	const uint32_t mode = wait_out(account, gate, work, &wait);
	stand_at_closed(account, &wait.stands_at_closed, false);
	atomic_fetch_sub(&account->waiting_for_progress, 1);
	account->waiting--;
	account->throttled_ns += clock_ns() - since_ns;
	account_publish(account);
	pthread_setcancelstate(cancellation, NULL);
	return mode;
}
