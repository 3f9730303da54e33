/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that looks at markers. It is there from the first marker to the end of the process,
 * and sleeps until the time for which the next one is expected. Where it cannot be started, who
 * waits at the gate looks.
 *
 * Lock order: `metering`, then an account's lock.
 */
#include "marker.h"
#include "marker_end.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "quota/pages.h"
#include "share/clock.h"
#include "share/futex.h"

#define STACK_BYTES (256 << 10) /* the driver runs on it */
#define TIMER_SLACK_NS 1000UL
#define START_AGAIN_NS UINT64_C(1000000000)
#define HOLD_WAIT_SECONDS 1
#define END_WAIT_NS UINT64_C(2000000000)

enum meter_state { METER_NONE, METER_STARTING, METER_RUNS, METER_ENDS, METER_ENDED };

pthread_mutex_t metering = PTHREAD_MUTEX_INITIALIZER;

static struct {
	_Atomic uint32_t state;	  /* futex word */
	_Atomic uint32_t bell;	  /* futex word: one more when there is something to look at */
	_Atomic uint64_t wake_ns; /* until when it sleeps; 0: it is looking */
	_Atomic uint64_t failed_ns;
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

	pthread_mutex_lock(&metering);
	for (unsigned card = 0; card < pages.card_count; card++) {
		const uint64_t look_ns = markers_look(card);
		next = look_ns < next ? look_ns : next;
	}
	pthread_mutex_unlock(&metering);
	return next;
}

static void prepare_thread(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
	/* What it asks is none of any capture, and must not end one. */
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static void *run(void *unused)
{
	uint32_t expected = METER_STARTING;

	prepare_thread();
	atomic_compare_exchange_strong(&meter.state, &expected, METER_RUNS);
	while (atomic_load(&meter.state) != METER_ENDS) {
		const uint32_t rung = atomic_load(&meter.bell);
		atomic_store(&meter.wake_ns, 0);
		const uint64_t next = look_at_all();
		atomic_store(&meter.wake_ns, next);
		if (atomic_load(&meter.state) != METER_ENDS)
			futex_wait(&meter.bell, rung, next, FUTEX_OF_PROCESS);
	}
	atomic_store(&meter.state, METER_ENDED);
	futex_wake_all(&meter.state, FUTEX_OF_PROCESS);
	return unused;
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
	atomic_fetch_add(&meter.bell, 1);
	futex_wake_all(&meter.bell, FUTEX_OF_PROCESS);
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

/* The program's signals are not for this thread. */
static bool start(void)
{
	static _Atomic bool hooked;
	sigset_t all, before;

	if (!atomic_exchange(&hooked, true))
		atexit(end);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* A program with much thread-local data does not fit into a small stack with it. */
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
		markers_look_here(); /* it may not have been started */
	}
	const uint64_t wake_ns = atomic_load(&meter.wake_ns);
	if (wake_ns != 0 && wake_ns <= look_ns)
		return;
	atomic_fetch_add(&meter.bell, 1);
	futex_wake_all(&meter.bell, FUTEX_OF_PROCESS);
}

/* In the meter's place. If it has the lock it looks by itself. */
static void look_here(bool are_due)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	if (pthread_mutex_trylock(&metering) == 0) {
		const bool relaxed = REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
		for (unsigned card = 0; card < pages.card_count; card++) {
			if (are_due)
				markers_are_due(card);
			markers_look(card);
		}
		if (relaxed)
			REAL(cuThreadExchangeStreamCaptureMode)(&mode);
		pthread_mutex_unlock(&metering);
	}
	pthread_setcancelstate(cancellation, NULL);
}

void markers_look_here(void)
{
	if (atomic_load(&meter.state) != METER_RUNS)
		look_here(false);
}

void markers_after_wait(void)
{
	look_here(true);
}

/* A child has no meter thread, and none of the driver's events. The lock is made anew: it is held
 * while the driver is called, too long to be taken before a fork. */
void markers_after_fork_in_child(void)
{
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	metering = unlocked;
	atomic_store(&meter.state, METER_NONE);
	atomic_store(&meter.wake_ns, 0);
	atomic_store(&meter.failed_ns, 0);
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		if (card_markers[card].ready)
			memset(&card_markers[card], 0, sizeof(card_markers[card]));
}
