/* SPDX-License-Identifier: Apache-2.0
 *
 * What may end, or go wrong, while work is counted: threads, streams, contexts, events.
 */
#include <string.h>

#include "device_file.h"
#include "gate_program.h"
#include "quota/pages.h"
#include "tenant.h"

/* So that what is given stays pending while the test does its worst. */
static void keep_card_busy(CUstream stream)
{
	CHECK(launch_on(stream, 20 * MILLISECOND) == CUDA_SUCCESS);
}

static void begin(void)
{
	gate_set(GPUSHARE_GATE_METERED);
	until_idle();
}

static void nothing(void)
{
}

static void *launch_and_look(void *unused)
{
	gate_program_enter();
	for (int i = 0; i < 300; i++)
		launch(10 * MICROSECOND);
	return unused;
}

static void forks_and_launches_do_not_meet(void)
{
	begin();
	const uint64_t before = own_work().submitted;
	pthread_t threads[3];
	for (int i = 0; i < 3; i++)
		threads[i] = thread_that(launch_and_look, NULL);
	for (int i = 0; i < 30; i++)
		CHECK(in_child(nothing) == 0);
	for (int i = 0; i < 3; i++)
		join(threads[i]);
	until_idle();
	CHECK(own_work().submitted == before + 900);
}

static void a_stream_may_end_with_work_pending(void)
{
	CUstream stream;

	begin();
	const struct work before = own_work();
	const uint64_t served = served_ns();
	for (int i = 0; i < 50; i++) {
		CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
		CHECK(launch_on(stream, 300 * MICROSECOND) == CUDA_SUCCESS);
		CHECK(launch_on(stream, 30 * MICROSECOND) == CUDA_SUCCESS);
		CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	}
	until_idle();
	const struct work after = own_work();
	CHECK(after.submitted == before.submitted + 100);
	CHECK(after.busy_ns - before.busy_ns + MILLISECOND >= served_ns() - served);
}

static void a_context_may_end_with_work_pending(void)
{
	begin();
	const uint64_t before = own_work().submitted;
	for (int i = 0; i < 10; i++) {
		CUcontext context;
		CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
		CHECK(launch_in_current(MILLISECOND) == CUDA_SUCCESS);
		CHECK(launch_in_current(10 * MICROSECOND) == CUDA_SUCCESS);
		launch_elsewhere();
		CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
	}
	gate_program_enter();
	until_idle();
	CHECK(own_work().submitted == before + 30 && own_work().pending_ns == 0);
}

static void a_primary_context_may_be_reset_with_work_pending(void)
{
	begin();
	for (int i = 0; i < 10; i++) {
		keep_card_busy(NULL);
		launch(10 * MICROSECOND);
		CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
		CHECK(own_work().submitted == own_work().ended);
		gate_program_start();
	}
	keep_card_busy(NULL);
	until_idle();
}

static void *launch_until_idle(void *unused)
{
	CUstream stream;

	gate_program_enter();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(launch_on(stream, MILLISECOND) == CUDA_SUCCESS);
	for (int i = 0; i < 4; i++)
		CHECK(launch_on(stream, 10 * MICROSECOND) == CUDA_SUCCESS);
	until_idle();
	return unused;
}

/* Asking an event would end the capture, were it not for the mode of the thread that asks. */
static void a_capture_is_not_disturbed(void)
{
	CUstream stream;
	CUgraph graph;

	begin();
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(launch_on(stream, MILLISECOND) == CUDA_SUCCESS);
	CHECK(launch_on(stream, 10 * MICROSECOND) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
	const uint64_t before = own_work().submitted;
	CHECK(launch_on(stream, MILLISECOND) == CUDA_SUCCESS);
	CHECK(own_work().submitted == before);
	join(thread_that(launch_until_idle, NULL));
	CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	until_idle();
}

static void an_error_that_stays_ends_what_is_pending(void)
{
	begin();
	keep_card_busy(NULL);
	for (int i = 0; i < 10; i++)
		launch(MILLISECOND);
	device_faults()->event_error = CUDA_ERROR_ILLEGAL_ADDRESS;
	until_idle();
	CHECK(own_work().pending_ns == 0);
	device_faults()->event_error = 0;
	CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
	launch(MILLISECOND);
	until_idle();
}

/* More pieces that deserve a timing event each than there are, and than the driver takes. */
static void more_pieces_than_timing_events_are_all_counted(void)
{
	begin();
	const struct work before = own_work();
	const uint64_t served = served_ns();
	for (int i = 0; i < 700; i++)
		launch(600 * MICROSECOND);
	until_idle();
	CHECK(own_work().submitted == before.submitted + 700);
	CHECK(own_work().busy_ns - before.busy_ns + MILLISECOND >= served_ns() - served);
}

/* Another process of the tenant may write anything to the page. */
static void no_thread_waits_forever_because_of_a_page(void)
{
	begin();
	gate_set(GPUSHARE_GATE_WINDOW);
	atomic_store(&the_gate()->wait_max_ns, 20 * MILLISECOND);
	const uint32_t forced = own_work().forced;
	atomic_store(&pages.status->high_water, UINT32_MAX);
	memset(card_work(0, 1), 0xff, sizeof(struct gpushare_work) * (GPUSHARE_MAX_PROCESSES - 1));
	atomic_store(&card_work(0, 9)->ended, 0);
	atomic_store(&card_work(0, 9)->submitted, 1000);
	atomic_store(&card_work(0, 9)->pending_ns, SECOND);
	for (int i = 0; i < 5; i++)
		launch(10 * MICROSECOND);
	CHECK(own_work().forced > forced && own_work().waiting == 0);
	memset(card_work(0, 0), 0xff, sizeof(struct gpushare_work));
	launch(10 * MICROSECOND);
	memset(card_work(0, 1), 0, sizeof(struct gpushare_work) * (GPUSHARE_MAX_PROCESSES - 1));
	atomic_store(&pages.status->high_water, 1);
	atomic_store(&the_gate()->wait_max_ns, 60 * SECOND);
	launch(10 * MICROSECOND);
	until_idle();
}

static void *launch_on_own_streams(void *seed)
{
	unsigned drawn = (unsigned)(uintptr_t)seed;
	CUstream stream;

	gate_program_enter();
	for (int round = 0; round < 20; round++) {
		CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
		for (int i = 0; i < 20; i++) {
			drawn = drawn * 1664525 + 1013904223;
			CHECK(launch_on(drawn >> 31 ? stream : NULL,
				      (drawn >> 16 & 63) * MICROSECOND) == CUDA_SUCCESS);
		}
		if (round % 3 == 0)
			CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
		CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	}
	return NULL;
}

static void *change_modes(void *stop)
{
	static const enum gpushare_gate_mode modes[] = {GPUSHARE_GATE_METERED, GPUSHARE_GATE_WINDOW,
		GPUSHARE_GATE_CLOSED, GPUSHARE_GATE_WINDOW};

	for (unsigned i = 0; !atomic_load((_Atomic bool *)stop); i++) {
		gate_set(modes[i % 4]);
		pause_a_little();
	}
	gate_set(GPUSHARE_GATE_WINDOW);
	return NULL;
}

static void threads_and_modes_in_any_order(void)
{
	_Atomic bool stop = false;
	pthread_t threads[4];

	begin();
	const uint64_t before = own_work().submitted;
	const pthread_t changing = thread_that(change_modes, &stop);
	for (uintptr_t i = 0; i < 4; i++)
		threads[i] = thread_that(launch_on_own_streams, (void *)(i + 1));
	for (int i = 0; i < 4; i++)
		join(threads[i]);
	atomic_store(&stop, true);
	join(changing);
	until_idle();
	CHECK(own_work().submitted == before + 4 * 20 * 20);
	CHECK(own_work().pending_ns == 0 && own_work().waiting == 0);
}

int main(void)
{
	gate_prepare();
	gate_program_start();
	TEST(forks_and_launches_do_not_meet);
	TEST(a_stream_may_end_with_work_pending);
	TEST(a_context_may_end_with_work_pending);
	TEST(a_primary_context_may_be_reset_with_work_pending);
	TEST(a_capture_is_not_disturbed);
	TEST(an_error_that_stays_ends_what_is_pending);
	TEST(more_pieces_than_timing_events_are_all_counted);
	TEST(no_thread_waits_forever_because_of_a_page);
	TEST(threads_and_modes_in_any_order);
	return 0;
}
