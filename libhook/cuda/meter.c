/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that queries timing events. It runs from the first timing event to the end of the
 * process, and sleeps until the next one is expected. If it cannot be started, the threads that
 * wait at the gate query the events.
 *
 * A program that waits for each few units of work queries their events itself, after each wait. As
 * long as it does, and no thread waits at the gate, the meter thread is spared: no work wakes it,
 * and it only checks every SPARED_NS that there was another such wait. All work that is pending
 * then is younger than that, for the wait left none.
 *
 * Lock order: `metering`, then an account's lock.
 */
#include "timing_event.h"
#include "evicted.h"
#include "timing_context_end.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "quota/pages.h"
#include "share/clock.h"
#include "share/futex.h"

#define STACK_BYTES (256 << 10) /* driver calls run on it */
#define TIMER_SLACK_NS 1000UL
#define START_AGAIN_NS UINT64_C(1000000000)
#define HOLD_WAIT_SECONDS 1
#define END_WAIT_NS UINT64_C(2000000000)
/* Between two checks that the program still waits by itself. */
#define SPARED_NS UINT64_C(500000)
#define EVICTED_NS UINT64_C(1000000000)
/* So many waits in a row let expect more of them. */
#define PROMPT_WAITS 16

enum meter_state { METER_NONE, METER_STARTING, METER_RUNS, METER_ENDS, METER_ENDED };

pthread_mutex_t metering = PTHREAD_MUTEX_INITIALIZER;

static struct {
	_Atomic uint32_t state;	  /* futex word */
	_Atomic uint32_t wakeups; /* futex word: incremented when there is an event to query */
	_Atomic uint64_t wake_ns; /* until when it sleeps; 0: it is querying */
	_Atomic uint64_t failed_ns;
	_Atomic uint32_t prompt_waits; /* in a row, which left no work */
	_Atomic bool is_spared;
} meter;

bool meter_hold(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until); /* the clock of pthread_mutex_timedlock */
	until.tv_sec += HOLD_WAIT_SECONDS;
	return pthread_mutex_timedlock(&metering, &until) == 0;
}

static uint64_t look_at_all(void)
{
	uint64_t next = UINT64_MAX;

	/* All work has ended by then, and no thread of the program can add any. */
	if (is_evicted())
		return clock_ns() + EVICTED_NS;
	pthread_mutex_lock(&metering);
	for (unsigned card = 0; card < pages.card_count; card++) {
		const uint64_t look_ns = timing_look(card);
		next = look_ns < next ? look_ns : next;
	}
	pthread_mutex_unlock(&metering);
	return next;
}

static bool a_launch_waits(void)
{
	for (unsigned card = 0; card < pages.card_count; card++)
		if (atomic_load(&work_accounts[card].waiting_for_progress) > 0)
			return true;
	return false;
}

/* Whether there were enough waits, and one since the last call. */
static bool look_is_needless(uint32_t *waits_seen)
{
	const uint32_t waits = atomic_load(&meter.prompt_waits), seen = *waits_seen;

	*waits_seen = waits;
	return waits >= PROMPT_WAITS && waits != seen && !a_launch_waits();
}

static void prepare_thread(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
	evicted_never_ask();
	/* Its calls belong to no capture, and must not end one. */
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static void *run(void *unused)
{
	uint32_t expected = METER_STARTING, waits_seen = 0;

	prepare_thread();
	atomic_compare_exchange_strong(&meter.state, &expected, METER_RUNS);
	while (atomic_load(&meter.state) != METER_ENDS) {
		const uint32_t wakeups = atomic_load(&meter.wakeups);
		atomic_store(&meter.wake_ns, 0);
		const bool is_spared = look_is_needless(&waits_seen);
		/* Before the look: what it does not see will find it so (meter_is_spared). */
		atomic_store(&meter.is_spared, is_spared);
		const uint64_t next = is_spared ? clock_ns() + SPARED_NS : look_at_all();
		atomic_store(&meter.wake_ns, next);
		if (atomic_load(&meter.state) != METER_ENDS)
			futex_wait(&meter.wakeups, wakeups, next, FUTEX_OF_PROCESS);
	}
	atomic_store(&meter.state, METER_ENDED);
	futex_wake_all(&meter.state, FUTEX_OF_PROCESS);
	return unused;
}

static void wake(void)
{
	atomic_fetch_add(&meter.wakeups, 1);
	futex_wake_all(&meter.wakeups, FUTEX_OF_PROCESS);
}

/* Before the driver is torn down. */
static void end(void)
{
	const uint64_t until_ns = clock_ns() + END_WAIT_NS;
	uint32_t state = METER_RUNS;

	gate_open_for_good();
	while (!atomic_compare_exchange_weak(&meter.state, &state, METER_ENDS))
		if (state != METER_STARTING && state != METER_RUNS)
			return;
	wake();
	while (atomic_load(&meter.state) == METER_ENDS && clock_ns() < until_ns)
		futex_wait(&meter.state, METER_ENDS, until_ns, FUTEX_OF_PROCESS);
}

static int create(size_t stack_bytes)
{
	pthread_attr_t attributes;
	pthread_t thread;

	if (pthread_attr_init(&attributes) != 0)
		return EAGAIN;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (stack_bytes)
		pthread_attr_setstacksize(&attributes, stack_bytes);
	const int error = pthread_create(&thread, &attributes, run, NULL);
	pthread_attr_destroy(&attributes);
	return error;
}

/* This thread must not receive the program's signals. */
static bool start(void)
{
	static _Atomic bool hooked;
	sigset_t all, before;

	if (!atomic_exchange(&hooked, true))
		atexit(end);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* With much thread-local data in the program, a small stack is not sufficient. */
	const bool started = create(STACK_BYTES) == 0 || create(0) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return started;
}

static void start_once(void)
{
	const uint64_t failed_ns = atomic_load(&meter.failed_ns);
	uint32_t state = METER_NONE;
	int saved = errno, cancellation;

	if (failed_ns != 0 && clock_ns() - failed_ns < START_AGAIN_NS)
		return;
	if (!atomic_compare_exchange_strong(&meter.state, &state, METER_STARTING))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	if (!start()) {
		atomic_store(&meter.failed_ns, clock_ns());
		atomic_store(&meter.state, METER_NONE);
	}
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}

void meter_watch(uint64_t look_ns)
{
	if (__builtin_expect(atomic_load(&meter.state) == METER_NONE, 0)) {
		start_once();
		timing_look_here(); /* it may not have been started */
	}
	const uint64_t wake_ns = atomic_load(&meter.wake_ns);
	if (!meter_is_spared() && (wake_ns == 0 || wake_ns > look_ns))
		wake();
}

bool meter_is_spared(void)
{
	return atomic_load(&meter.is_spared);
}

void meter_hurry(void)
{
	if (atomic_exchange(&meter.is_spared, false))
		wake();
}

/* In place of the meter thread. If that holds the lock, it queries the events itself. Returns
 * whether all work has finished. */
static bool look_here(bool are_due)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool all_finished = false;
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	if (pthread_mutex_trylock(&metering) == 0) {
		const bool relaxed = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
		all_finished = true;
		for (unsigned card = 0; card < pages.card_count; card++) {
			if (are_due)
				timing_events_are_due(card);
			all_finished &= timing_look(card) == UINT64_MAX;
		}
		if (relaxed)
			REAL(cuThreadExchangeStreamCaptureMode)(&mode);
		pthread_mutex_unlock(&metering);
	}
	pthread_setcancelstate(cancellation, NULL);
	return all_finished;
}

void timing_look_here(void)
{
	if (atomic_load(&meter.state) != METER_RUNS)
		look_here(false);
}

void timing_after_wait(enum timing_wait wait)
{
	const bool all_finished = look_here(true);

	if (wait == WAIT_PROMPT && all_finished)
		atomic_fetch_add(&meter.prompt_waits, 1);
	if (wait == WAIT_LATE) {
		atomic_store(&meter.prompt_waits, 0);
		meter_hurry();
	}
}

/* A child has no meter thread, and none of the driver's events. The lock is reinitialized: it is
 * held while the driver is called, too long to be taken before a fork. */
void timing_after_fork_in_child(void)
{
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	metering = unlocked;
	atomic_store(&meter.state, METER_NONE);
	atomic_store(&meter.wake_ns, 0);
	atomic_store(&meter.failed_ns, 0);
	atomic_store(&meter.prompt_waits, 0);
	atomic_store(&meter.is_spared, false);
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (card_timing[card].ready)
			memset(&card_timing[card], 0, sizeof(card_timing[card]));
}
