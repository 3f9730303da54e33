/* SPDX-License-Identifier: Apache-2.0 */
#include "gate_wait.h"

#include <pthread.h>

#include "wakeup.h"
#include "clock.h"
#include "futex.h"
#include "timing_events.h"
#include "quota/process_table.h"

/* The longest time before a waiting thread checks again by itself: another process may have to make
 * progress first, and may exit or be stopped before it reports. */
#define LOOK_NS UINT64_C(50000000)
/* For pending work of the tenant's other processes: their wake-up may come between the check and
 * the sleep. */
#define LOOK_AT_OTHERS_NS UINT64_C(1000000)
/* From time to time, look for dead processes, whose work would be pending forever. */
#define REAP_NS UINT64_C(200000000)

enum obstacle {
	OBSTACLE_NONE,
	OBSTACLE_CLOSED,
	OBSTACLE_FULL,
	OBSTACLE_FULL_OF_OTHERS,
	OBSTACLE_SELF_THROTTLE
};

/* The obstacle to a unit of work, and when to check again even without a wake-up. */
struct view {
	enum obstacle obstacle;
	uint32_t mode;
	uint64_t until_ns;
};

static bool window_has_room(
	const struct gpushare_gate *gate, const struct work_account_sum *sum, uint64_t estimate_ns)
{
	const uint32_t least = atomic_load_explicit(&gate->pieces_min, memory_order_relaxed);

	return sum->pieces < (least ? least : 1) ||
	       sum->pending_ns + estimate_ns <=
		       atomic_load_explicit(&gate->in_flight_max_ns, memory_order_relaxed);
}

static void look_at_self_throttle(struct work_account *account, const struct gpushare_gate *gate,
	const struct work_account_sum *sum, const struct gate_work *work, uint64_t now_ns,
	struct view *view)
{
	const uint64_t start_ns = self_throttle_start_ns(&account->throttle, gate, now_ns,
		sum->busy_ns + sum->pending_ns, work->estimate_ns);

	if (start_ns <= now_ns)
		return;
	view->obstacle = OBSTACLE_SELF_THROTTLE;
	view->until_ns = start_ns < view->until_ns ? start_ns : view->until_ns;
}

/* With the lock. */
static void look(struct work_account *account, const struct gpushare_gate *gate,
	const struct gate_work *work, uint64_t now_ns, struct view *view)
{
	struct work_account_sum sum;

	*view = (struct view){.mode = atomic_load_explicit(&gate->mode, memory_order_relaxed),
		.until_ns = now_ns + LOOK_NS};
	if (view->mode == GPUSHARE_GATE_OPEN || gate_is_open_for_good()) {
		view->mode = GPUSHARE_GATE_OPEN;
		return;
	}
	account->is_unscheduled = gate_is_stale(gate, now_ns);
	if (account->is_unscheduled) {
		work_account_sum(account, work->card, &sum);
		look_at_self_throttle(account, gate, &sum, work, now_ns, view);
	} else if (view->mode == GPUSHARE_GATE_CLOSED) {
		view->obstacle = OBSTACLE_CLOSED;
	} else if (view->mode == GPUSHARE_GATE_WINDOW) {
		work_account_sum(account, work->card, &sum);
		if (window_has_room(gate, &sum, work->estimate_ns))
			return;
		view->obstacle =
			work_account_is_idle(account) ? OBSTACLE_FULL_OF_OTHERS : OBSTACLE_FULL;
		if (sum.pieces != account->submitted - account->ended)
			view->until_ns = now_ns + LOOK_AT_OTHERS_NS;
	}
}

bool gate_may_pass_slowly(struct work_account *account, const struct gpushare_gate *gate,
	uint32_t mode, const struct gate_work *work)
{
	struct view view;

	if (mode == GPUSHARE_GATE_CLOSED)
		return false; /* gate_wait checks again, at the right moment */
	look(account, gate, work, account->is_unscheduled ? clock_ns() : 0, &view);
	return view.obstacle == OBSTACLE_NONE && view.mode == mode;
}

/* With the lock; true for the first thread at a closed gate. */
static bool stand_at_closed(struct work_account *account, bool *stands, bool closed)
{
	if (*stands == closed)
		return false;
	*stands = closed;
	account->waiting_closed += closed ? 1 : (uint32_t)-1;
	return closed && account->waiting_closed == 1;
}

/* One sleep, without the lock; a wake-up after `epoch` and `progress` were read is not missed. */
static void sleep_before(struct work_account *account, const struct gpushare_gate *gate,
	const struct view *view, uint32_t epoch, uint32_t progress, uint64_t deadline_ns)
{
	const uint64_t until_ns = view->until_ns < deadline_ns ? view->until_ns : deadline_ns;

	if (view->obstacle == OBSTACLE_FULL) {
		timing_look_here();
		futex_wait(&account->progress, progress, until_ns, FUTEX_OF_PROCESS);
	} else {
		futex_wait(&gate->epoch, epoch, until_ns, FUTEX_OF_ALL);
	}
}

struct wait {
	uint64_t since_ns, deadline_ns, reap_ns;
	bool stands_at_closed;
};

/* Work after the last timing event needs one, and dead processes must be found: otherwise the wait
 * never ends. */
static void help(
	const struct gate_work *work, struct wait *wait, enum obstacle obstacle, uint64_t now_ns)
{
	if (obstacle == OBSTACLE_FULL)
		timing_close(work);
	if (process_count() > 1 && obstacle != OBSTACLE_CLOSED && now_ns >= wait->reap_ns) {
		wait->reap_ns = now_ns + REAP_NS;
		process_table_reap();
	}
}

/* Wait until there is no obstacle or the wait has lasted too long. With the lock. */
static uint32_t wait_out(struct work_account *account, const struct gpushare_gate *gate,
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
		work_account_publish(account);
		const bool has_place = timing_find_stream(work);
		spinlock_unlock(&account->lock);
		if (is_first)
			wakeup_send();
		if (has_place)
			help(work, wait, view.obstacle, now_ns);
		sleep_before(account, gate, &view, epoch, progress, wait->deadline_ns);
		spinlock_lock(&account->lock);
	}
}

uint32_t gate_wait(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	const uint64_t since_ns = clock_ns();
	struct wait wait = {.since_ns = since_ns,
		.deadline_ns = since_ns + atomic_load(&gate->wait_max_ns),
		.reap_ns = since_ns + REAP_NS};
	int cancellation;

	pthread_setcancelstate(
		PTHREAD_CANCEL_DISABLE, &cancellation); /* otherwise it would stay counted */
	account->waiting++;
	atomic_fetch_add(&account->waiting_for_progress, 1);
	const uint32_t mode = wait_out(account, gate, work, &wait);
	stand_at_closed(account, &wait.stands_at_closed, false);
	atomic_fetch_sub(&account->waiting_for_progress, 1);
	account->waiting--;
	account->throttled_ns += clock_ns() - since_ns;
	work_account_publish(account);
	pthread_setcancelstate(cancellation, NULL);
	return mode;
}

void gate_wait_for_stream(
	struct work_account *account, const struct gpushare_gate *gate, struct gate_work *work)
{
	const uint64_t deadline_ns = clock_ns() + atomic_load(&gate->wait_max_ns);
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	atomic_fetch_add(&account->waiting_for_progress, 1);
	while (!timing_find_stream(work) && !work_account_is_idle(account)) {
		const uint32_t progress = atomic_load(&account->progress);
		const uint64_t now_ns = clock_ns();

		if (now_ns >= deadline_ns)
			break;
		spinlock_unlock(&account->lock);
		timing_look_here();
		futex_wait(
			&account->progress, progress, now_ns + LOOK_AT_OTHERS_NS, FUTEX_OF_PROCESS);
		timing_add_stream(work);
		spinlock_lock(&account->lock);
	}
	atomic_fetch_sub(&account->waiting_for_progress, 1);
	pthread_setcancelstate(cancellation, NULL);
}
