/* SPDX-License-Identifier: Apache-2.0
 *
 * A process is taken off its cards and put back, by another one, and does not notice. What cuda.h
 * does not say is among the assumptions in simulator/README.md.
 */
#include "contract.h"

#include "cuda_checkpoint.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE (4 * MIB)
#define LOCK_MS 60000

enum verb { LOCK, CHECKPOINT, RESTORE, UNLOCK, VERBS };

static CUresult call(enum verb verb, pid_t pid)
{
	CUcheckpointLockArgs lock = {.timeoutMs = LOCK_MS};

	switch (verb) {
	case LOCK:
		return cuCheckpointProcessLock(pid, &lock);
	case CHECKPOINT:
		return cuCheckpointProcessCheckpoint(pid, NULL);
	case RESTORE:
		return cuCheckpointProcessRestore(pid, NULL);
	default:
		return cuCheckpointProcessUnlock(pid, NULL);
	}
}

static CUprocessState state_of(pid_t pid)
{
	CUprocessState state;

	OK(cuCheckpointProcessGetState(pid, &state));
	return state;
}

static void evict(pid_t pid)
{
	OK(call(LOCK, pid));
	OK(call(CHECKPOINT, pid));
}

static void put_back(pid_t pid)
{
	OK(call(RESTORE, pid));
	OK(call(UNLOCK, pid));
}

/* --- programs that are checkpointed --- */

/* The kinds of memory that a program has: linear, of a pool, mapped. */
enum { KINDS = 3, SAMPLE = 4096 };

static void fill_sample(unsigned char *sample, unsigned int seed)
{
	for (size_t i = 0; i < SAMPLE; i++)
		sample[i] = (unsigned char)(i * 31 + i / 256 + seed);
}

static void make_contents(CUdeviceptr pointers[KINDS])
{
	unsigned char sample[SAMPLE];

	pointers[0] = allocated(SIZE);
	OK(cuMemAllocAsync(&pointers[1], SIZE, NULL));
	pointers[2] = mapped(physical(0, SIZE, CU_MEM_HANDLE_TYPE_NONE), SIZE);
	for (unsigned int kind = 0; kind < KINDS; kind++) {
		fill_sample(sample, kind);
		OK(cuMemcpyHtoD_v2(pointers[kind], sample, SAMPLE));
		OK(cuMemcpyHtoD_v2(pointers[kind] + SIZE - SAMPLE, sample, SAMPLE));
	}
	OK(launch_ns(NULL, 1000)); /* the kernel is loaded */
	OK(cuCtxSynchronize());
}

static void compare_contents(const CUdeviceptr pointers[KINDS])
{
	unsigned char sample[SAMPLE], found[SAMPLE];

	for (unsigned int kind = 0; kind < KINDS; kind++) {
		fill_sample(sample, kind);
		OK(cuMemcpyDtoH_v2(found, pointers[kind], SAMPLE));
		EQUAL(memcmp(found, sample, SAMPLE), 0);
		OK(cuMemcpyDtoH_v2(found, pointers[kind] + SIZE - SAMPLE, SAMPLE));
		EQUAL(memcmp(found, sample, SAMPLE), 0);
	}
	OK(launch_ns(NULL, 1000));
	OK(cuCtxSynchronize());
}

/* Has memory of every kind, compares it each time that it is told to, and says its card. */
static void have_contents(int socket)
{
	CUdeviceptr pointers[KINDS];
	CUuuid uuid;

	begin();
	make_contents(pointers);
	for (;;) {
		OK(cuDeviceGetUuid_v2(&uuid, 0));
		say_bytes(socket, &uuid, sizeof(uuid));
		hear(socket);
		compare_contents(pointers);
	}
}

/* Wait until a target of have_contents has its contents. */
static CUuuid card_of(struct peer target)
{
	CUuuid uuid;

	hear_bytes(target.socket, &uuid, sizeof(uuid));
	return uuid;
}

static CUuuid compared(struct peer target)
{
	say(target.socket, 0);
	return card_of(target);
}

/* --- cases --- */

void the_states_of_a_checkpoint_follow_one_another(void)
{
	/* After each call: the state, and the calls that it allows. The others change nothing. */
	static const struct {
		CUprocessState state;
		unsigned int allowed;
	} after[VERBS] = {{CU_PROCESS_STATE_LOCKED, 1U << CHECKPOINT | 1U << UNLOCK},
		{CU_PROCESS_STATE_CHECKPOINTED, 1U << RESTORE},
		{CU_PROCESS_STATE_LOCKED, 1U << CHECKPOINT | 1U << UNLOCK},
		{CU_PROCESS_STATE_RUNNING, 1U << LOCK}};
	struct peer target = peer_start(have_contents);

	card_of(target);
	begin();
	EQUAL(state_of(target.pid), CU_PROCESS_STATE_RUNNING);
	for (enum verb last = LOCK; last < VERBS; last++) {
		OK(call(last, target.pid));
		EQUAL(state_of(target.pid), after[last].state);
		for (enum verb verb = LOCK; verb < VERBS; verb++)
			if (!(after[last].allowed & 1U << verb))
				IS(CUDA_ERROR_ILLEGAL_STATE, call(verb, target.pid));
		EQUAL(state_of(target.pid), after[last].state);
	}
	compared(target);
	peer_kill(target);
}

static void have_no_context(int socket)
{
	say(socket, 0);
	hear(socket);
}

void only_processes_with_cuda_have_a_state(void)
{
	struct peer idle = peer_start(have_no_context);
	const pid_t pids[] = {idle.pid, 1, 0, -1};
	CUprocessState state;

	hear(idle.socket);
	begin();
	for (int i = 0; i < 4; i++) {
		FAILS(cuCheckpointProcessGetState(pids[i], &state));
		for (enum verb verb = LOCK; verb < VERBS; verb++)
			FAILS(call(verb, pids[i]));
	}
	peer_kill(idle);
}

void a_caller_without_cuinit_takes_a_process_off_its_card(void)
{
	struct peer target = peer_start(have_contents);

	card_of(target);
	evict(target.pid);
	EQUAL(state_of(target.pid), CU_PROCESS_STATE_CHECKPOINTED);
	peer_kill(target);
}

void the_memory_of_a_checkpointed_process_is_anothers(void)
{
	struct peer target = peer_start(have_contents);

	card_of(target);
	begin();
	const size_t before = free_bytes();
	evict(target.pid);
	CHECK(free_bytes() - before >= KINDS * SIZE);
	fill(0);
	empty();
	put_back(target.pid);
	compared(target);
	EQUAL(free_bytes(), before);
	peer_kill(target);
}

void a_restore_without_room_is_the_last(void)
{
	struct peer target = peer_start(have_contents);
	CUprocessState state;

	card_of(target);
	begin();
	evict(target.pid);
	fill(SIZE);
	IS(CUDA_ERROR_OUT_OF_MEMORY, call(RESTORE, target.pid));
	empty();
	EQUAL(state_of(target.pid), CU_PROCESS_STATE_CHECKPOINTED);
	IS(CUDA_ERROR_OPERATING_SYSTEM, call(RESTORE, target.pid));
	IS(CUDA_ERROR_ILLEGAL_STATE, call(UNLOCK, target.pid));
	EQUAL(state_of(target.pid), CU_PROCESS_STATE_CHECKPOINTED);
	peer_kill(target);
	FAILS(cuCheckpointProcessGetState(target.pid, &state));
}

/* Says that it has what it has, and that its calls go on. */
static void go_on(int socket)
{
	say(socket, 0);
	hear(socket);
	free_bytes();
	say(socket, 0);
	hear(socket);
}

static void have_managed_memory(int socket)
{
	CUdeviceptr pointer;

	begin();
	OK(cuMemAllocManaged(&pointer, MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemsetD32_v2(pointer, 1, MIB / 4));
	OK(cuCtxSynchronize());
	go_on(socket);
}

void managed_memory_cannot_leave(void)
{
	struct peer target = peer_start(have_managed_memory);

	hear(target.socket);
	begin();
	OK(call(LOCK, target.pid));
	IS(CUDA_ERROR_NOT_SUPPORTED, call(CHECKPOINT, target.pid));
	EQUAL(state_of(target.pid), CU_PROCESS_STATE_LOCKED);
	OK(call(UNLOCK, target.pid));
	say(target.socket, 0);
	hear(target.socket); /* and it goes on */
	peer_kill(target);
}

/* Exports memory, and says what is in it each time that it is asked. */
static void have_shared_memory(int socket)
{
	unsigned int word;
	int fd;

	begin();
	const CUmemGenericAllocationHandle memory =
		physical(0, SIZE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	const CUdeviceptr pointer = mapped(memory, SIZE);
	OK(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	say_fd(socket, fd);
	for (;;) {
		hear(socket);
		OK(cuMemcpyDtoH_v2(&word, pointer, sizeof(word)));
		say(socket, word);
	}
}

static unsigned long long seen_by(struct peer target)
{
	say(target.socket, 0);
	return hear(target.socket);
}

void a_checkpoint_ends_the_sharing_of_memory_unnoticed(void)
{
	struct peer target = peer_start(have_shared_memory);
	CUmemGenericAllocationHandle memory;
	const int fd = hear_fd(target.socket);

	begin();
	OK(cuMemImportFromShareableHandle(
		&memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	const CUdeviceptr pointer = mapped(memory, SIZE);
	OK(cuMemsetD32_v2(pointer, 1, 1));
	OK(cuCtxSynchronize());
	EQUAL(seen_by(target), 1);
	const size_t before = free_bytes();
	evict(target.pid);
	put_back(target.pid);
	EQUAL(before - free_bytes(), SIZE); /* for a copy */
	OK(cuMemsetD32_v2(pointer, 2, 1));
	OK(cuCtxSynchronize());
	EQUAL(seen_by(target), 1);
	peer_kill(target);
}

void calls_wait_until_the_unlock(void)
{
	struct peer target = peer_start(have_contents);
	CUuuid uuid;

	card_of(target);
	begin();
	OK(call(LOCK, target.pid));
	say(target.socket, 0); /* it compares now, and cannot */
	OK(call(CHECKPOINT, target.pid));
	OK(call(RESTORE, target.pid));
	EQUAL(recv(target.socket, &uuid, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	OK(call(UNLOCK, target.pid));
	hear_bytes(target.socket, &uuid, sizeof(uuid));
	peer_kill(target);
}

static void be_busy(int socket)
{
	begin();
	OK(launch_ns(NULL, 60000 * MS));
	go_on(socket);
}

void a_lock_gives_up_at_its_timeout(void)
{
	struct peer target = peer_start(be_busy);
	CUcheckpointLockArgs at_once = {.timeoutMs = 50};

	hear(target.socket);
	begin();
	IS(CUDA_ERROR_NOT_READY, cuCheckpointProcessLock(target.pid, &at_once));
	EQUAL(state_of(target.pid), CU_PROCESS_STATE_RUNNING);
	say(target.socket, 0);
	hear(target.socket); /* and it goes on */
	peer_kill(target);
}

void a_killed_process_leaves_nothing_in_any_state(void)
{
	struct peer targets[VERBS];

	for (int i = 0; i < VERBS; i++)
		targets[i] = peer_start(have_contents);
	for (int i = 0; i < VERBS; i++)
		card_of(targets[i]);
	begin();
	const size_t before = free_bytes();
	for (enum verb last = LOCK; last < VERBS; last++) {
		for (enum verb verb = LOCK; verb <= last; verb++)
			OK(call(verb, targets[last].pid));
		peer_kill(targets[last]);
		FAILS(call(UNLOCK, targets[last].pid));
	}
	CHECK(free_bytes() - before >= VERBS * KINDS * SIZE);
	fill(0);
	CHECK(free_bytes() < 64 * granule());
	empty();
}

static CUresult moved(pid_t pid, CUuuid old, CUuuid new)
{
	CUcheckpointGpuPair pairs[] = {{old, new}, {new, old}}; /* every card is named */
	CUcheckpointRestoreArgs arguments = {.gpuPairs = pairs, .gpuPairsCount = 2};

	return cuCheckpointProcessRestore(pid, &arguments);
}

void a_process_moves_to_another_card_with_all_that_it_has(void)
{
	struct peer target = peer_start(have_contents);
	CUuuid cards[2], unknown = {{1}};

	const CUuuid first = card_of(target);
	CUcontext own = begin(), second;
	for (int i = 0; i < 2; i++)
		OK(cuDeviceGetUuid_v2(&cards[i], i));
	EQUAL(memcmp(&first, &cards[0], sizeof(first)), 0);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxSetCurrent(second));
	const size_t there = free_bytes();
	for (int i = 0; i < 2; i++) {
		const CUuuid old = cards[i], new = cards[1 - i];

		evict(target.pid);
		CUcheckpointGpuPair pair = {old, unknown};
		CUcheckpointRestoreArgs wrong = {.gpuPairs = &pair, .gpuPairsCount = 1};
		FAILS(cuCheckpointProcessRestore(target.pid, &wrong));
		EQUAL(state_of(target.pid), CU_PROCESS_STATE_CHECKPOINTED);
		OK(moved(target.pid, old, new));
		OK(call(UNLOCK, target.pid));
		const CUuuid now = compared(target);
		EQUAL(memcmp(&now, &new, sizeof(now)), 0);
		if (i == 0)
			CHECK(there - free_bytes() >= KINDS * SIZE);
		else
			EQUAL(free_bytes(), there);
	}
	OK(cuCtxSetCurrent(own));
	peer_kill(target);
}
