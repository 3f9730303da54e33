/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread of a process that carries out the checkpoint calls of others. It sleeps on the number
 * of requests in the device file. A forked child has none.
 *
 * If a restore finds no room, the process stays off its cards for ever, in the state CHECKPOINTED:
 * every later restore returns CUDA_ERROR_OPERATING_SYSTEM, and unlocking CUDA_ERROR_ILLEGAL_STATE
 * (NVIDIA/cuda-checkpoint issue 44).
 */
#include "checkpoint.h"

#include "calls.h"
#include "clock.h"
#include "driver.h"
#include "share/futex.h"

#include <pthread.h>
#include <signal.h>

#define STACK_BYTES (UINT64_C(256) << 10)
#define LOCK_LOOK_NS 200000

static struct sim_checkpoint *own;

static uint32_t state(void)
{
	return atomic_load(&own->state);
}

static void pause_ns(long duration)
{
	const struct timespec pause = {.tv_nsec = duration};

	nanosleep(&pause, NULL);
}

static bool has_ended(uint64_t began_ns)
{
	return own->timeout_ms > 0 && clock_ns() - began_ns >= own->timeout_ms * UINT64_C(1000000);
}

static CUresult lock(void)
{
	const uint64_t began = clock_ns();

	REQUIRE(state() == CU_PROCESS_STATE_RUNNING, CUDA_ERROR_ILLEGAL_STATE);
	calls_close();
	while (calls_are_in_progress() || !contexts_are_idle()) {
		if (has_ended(began)) {
			calls_open();
			return CUDA_ERROR_NOT_READY;
		}
		pause_ns(LOCK_LOOK_NS);
	}
	atomic_store(&own->state, CU_PROCESS_STATE_LOCKED);
	return CUDA_SUCCESS;
}

static CUresult checkpoint(void)
{
	CUresult result;

	REQUIRE(state() == CU_PROCESS_STATE_LOCKED, CUDA_ERROR_ILLEGAL_STATE);
	result = checkpoint_supported();
	if (result == CUDA_SUCCESS)
		result = checkpoint_evict();
	if (result == CUDA_SUCCESS)
		atomic_store(&own->state, CU_PROCESS_STATE_CHECKPOINTED);
	return result;
}

static bool is_persistent(void)
{
	for (uint32_t i = 0; i < device_entries(); i++) {
		const struct sim_card *card = &device->cards[i];

		if (checkpoint_concerns(card) &&
			atomic_load(&device->faults[card_place(card)].persistence_off))
			return false;
	}
	return true;
}

static CUresult restore(void)
{
	static bool was_without_room;
	CUresult result;

	REQUIRE(!was_without_room, CUDA_ERROR_OPERATING_SYSTEM);
	REQUIRE(state() == CU_PROCESS_STATE_CHECKPOINTED, CUDA_ERROR_ILLEGAL_STATE);
	REQUIRE(own->caller_started || is_persistent(), CUDA_ERROR_NOT_INITIALIZED);
	result = checkpoint_move(own);
	if (result == CUDA_SUCCESS)
		result = checkpoint_return();
	was_without_room = result == CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		atomic_store(&own->state, CU_PROCESS_STATE_LOCKED);
	return result;
}

static CUresult unlock(void)
{
	REQUIRE(state() == CU_PROCESS_STATE_LOCKED, CUDA_ERROR_ILLEGAL_STATE);
	atomic_store(&own->state, CU_PROCESS_STATE_RUNNING);
	calls_open();
	return CUDA_SUCCESS;
}

/* The injected fault for this operation, if any card of the process has one; it is used up. */
static struct sim_faults *fault_of_operation(void)
{
	for (uint32_t i = 0; i < device_entries(); i++) {
		struct sim_faults *faults = &device->faults[card_place(&device->cards[i])];
		uint32_t left = atomic_load(&faults->checkpoint_faults);

		if (left > 0 && faults->checkpoint_operation == own->operation &&
			checkpoint_concerns(&device->cards[i]) &&
			atomic_compare_exchange_strong(&faults->checkpoint_faults, &left, left - 1))
			return faults;
	}
	return NULL;
}

/* CUDA_SUCCESS: continue. */
static CUresult fail(struct sim_faults *faults)
{
	const CUresult error =
		faults->checkpoint_error ? (CUresult)faults->checkpoint_error : CUDA_ERROR_UNKNOWN;

	switch ((enum sim_checkpoint_fault)faults->checkpoint_effect) {
	case SIM_CHECKPOINT_REFUSES:
		break;
	case SIM_CHECKPOINT_FAILS:
		calls_close();
		atomic_store(&own->state, CU_PROCESS_STATE_FAILED);
		break;
	case SIM_CHECKPOINT_HANGS:
		while (faults->checkpoint_operation == own->operation)
			pause_ns(5000000);
		return CUDA_SUCCESS;
	case SIM_CHECKPOINT_CRASHES:
		raise(SIGSEGV);
		break;
	}
	return error;
}

static CUresult carry_out(void)
{
	struct sim_faults *faults = fault_of_operation();
	const CUresult fault = faults ? fail(faults) : CUDA_SUCCESS;

	if (fault != CUDA_SUCCESS)
		return fault;
	switch ((enum checkpoint_operation)own->operation) {
	case CHECKPOINT_LOCK:
		return lock();
	case CHECKPOINT_CHECKPOINT:
		return checkpoint();
	case CHECKPOINT_RESTORE:
		return restore();
	case CHECKPOINT_UNLOCK:
		return unlock();
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static void *serve(void *unused)
{
	uint32_t answered = 0;

	(void)unused;
	for (;;) {
		while (atomic_load(&own->requests) == answered)
			futex_wait(&own->requests, answered, UINT64_MAX, FUTEX_OF_ALL);
		own->result = carry_out();
		atomic_store(&own->replies, ++answered);
		futex_wake_all(&own->replies, FUTEX_OF_ALL);
	}
	return NULL;
}

void checkpoint_serve(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;

	if (device->header.cuda_version < CHECKPOINT_CUDA)
		return;
	own = &device->checkpoints[tag_process(process_tag())];
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	/* The program's signals are for its own threads. A crash by an injected fault is not. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, &attributes, serve, NULL) == 0) {
		pthread_setname_np(thread, CHECKPOINT_THREAD);
		atomic_store(&own->serving, 1);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
}
