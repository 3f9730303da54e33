/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts and processes: how long what they hold lasts.
 */
#include "contract.h"

#include <sys/wait.h>
#include <unistd.h>

static void use_the_card(int socket)
{
	begin();
	const CUdeviceptr pointer = allocated(16 * granule());

	say(socket, pointer);
	hear(socket);
}

void the_memory_of_a_killed_process_is_free(void)
{
	struct peer peer = peer_start(use_the_card);

	hear(peer.socket);
	begin();
	const size_t before = free_bytes(), size = 16 * granule();
	peer_kill(peer);
	/* Its context as well. */
	BECOMES(free_bytes() > before + size);
}

static void enter_when_told(int socket)
{
	hear(socket);
	use_the_card(socket);
}

void a_process_is_listed_from_its_first_context_to_its_end(void)
{
	struct peer peer = peer_start(enter_when_told);

	begin();
	if (listed_bytes(getpid()) < 0)
		skip("NVML lists no process by its PID here");
	EQUAL(listed_bytes(peer.pid), -1);
	say(peer.socket, 0);
	hear(peer.socket);
	CHECK(listed_bytes(peer.pid) > (long long)(16 * granule()));
	peer_kill(peer);
	EQUAL(listed_bytes(peer.pid), -1);
}

static void churn(int socket)
{
	begin();
	OK(launch_ns(NULL, 1000)); /* the kernel is loaded */
	for (;;) {
		CUdeviceptr pointers[8];

		for (size_t i = 0; i < 8; i++) {
			pointers[i] = allocated((i + 1) * MIB);
			OK(launch_ns(NULL, 20000));
		}
		say(socket, 0);
		for (size_t i = 0; i < 8; i++)
			OK(cuMemFree_v2(pointers[i]));
	}
}

void a_process_killed_at_any_moment_leaves_nothing(void)
{
	enum { PEERS = 5 };
	struct peer peers[PEERS];

	for (int i = 0; i < PEERS; i++)
		peers[i] = peer_start(churn);
	for (int i = 0; i < PEERS; i++)
		hear(peers[i].socket);
	begin();
	for (int i = 0; i < PEERS; i++) {
		for (int turns = 0; turns < 3; turns++)
			hear(peers[i].socket);
		peer_kill(peers[i]);
	}
	OK(launch_ns(NULL, 1000));
	OK(cuCtxSynchronize());
	fill(0);
	CHECK(free_bytes() < 64 * granule());
	empty();
}

void a_forked_child_has_no_driver(void)
{
	int status, count;
	size_t bytes;
	pid_t child;

	begin();
	const size_t before = free_bytes();
	child = fork();
	if (child == 0) {
		IS(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
		IS(CUDA_ERROR_NOT_INITIALIZED, cuMemGetInfo_v2(&bytes, &bytes));
		IS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
		_exit(0);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	EQUAL(free_bytes(), before);
	OK(cuMemFree_v2(allocated(1)));
}

void the_primary_context_is_one_and_ends_with_its_last_release(void)
{
	CUcontext first = begin(), second;
	unsigned int flags;
	int active;

	OK(cuDevicePrimaryCtxRetain(&second, 0));
	CHECK(first == second);
	allocated(granule());
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 1);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 0);
	begin();
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 1);
}

void a_destroyed_context_leaves_nothing_behind(void)
{
	CUcontext context;

	begin();
	const size_t before = free_bytes();

	OK(cuCtxCreate_v2(&context, 0, 0));
	allocated(16 * granule());
	allocated(10);
	CHECK(before - free_bytes() >= 16 * granule());
	OK(cuCtxDestroy_v2(context));
	UNCHANGED(before);
}

void the_last_detach_destroys(void)
{
	CUcontext context, attached;

	begin();
	const size_t before = free_bytes(), size = 4 * granule();

	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuCtxAttach(&attached, 0));
	CHECK(attached == context);
	allocated(size);
	OK(cuCtxDetach(context));
	CHECK(before - free_bytes() >= size);
	OK(cuCtxDetach(context));
	UNCHANGED(before);
}

void a_limit_is_what_it_was_raised_to_or_what_it_was(void)
{
	size_t heap, stack, now;

	begin();
	OK(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
	OK(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
	const size_t before = free_bytes();
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * heap));
	OK(cuCtxGetLimit(&now, CU_LIMIT_MALLOC_HEAP_SIZE));
	CHECK(now >= 8 * heap && free_bytes() <= before);
	FAILS(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, SIZE_MAX)); /* a heap may be: what fits is set */
	OK(cuCtxGetLimit(&now, CU_LIMIT_STACK_SIZE));
	EQUAL(now, stack);
	OK(cuCtxGetLimit(&now, CU_LIMIT_MALLOC_HEAP_SIZE));
	CHECK(now >= 8 * heap && now < 16 * heap);
}

static CUgreenCtx green_context(void)
{
	CUdevResource whole, part, rest;
	CUdevResourceDesc description;
	unsigned int count = 1;
	CUgreenCtx green;

	OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevSmResourceSplitByCount(&part, &count, &whole, &rest, 0, 8));
	OK(cuDevResourceGenerateDesc(&description, &part, 1));
	OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	return green;
}

void a_green_context_takes_memory_that_its_end_does_not_give_back(void)
{
	CUcontext context, current;

	begin();
	OK(launch_ns(NULL, 1000)); /* the kernel is loaded */
	OK(cuCtxSynchronize());
	for (int i = 0; i < 3; i++) {
		const size_t before = free_bytes();
		const CUgreenCtx green = green_context();
		const size_t taken = before - free_bytes();

		CHECK(taken >= 4 * MIB && taken < 16 * MIB);
		OK(cuCtxFromGreenCtx(&context, green));
		OK(cuCtxPushCurrent_v2(context));
		OK(launch_ns(NULL, 1000));
		OK(cuCtxSynchronize());
		OK(cuCtxPopCurrent_v2(&current));
		CHECK(current == context);
		OK(cuGreenCtxDestroy(green));
		EQUAL(before - free_bytes(), taken);
	}
}

void the_end_of_the_primary_context_gives_back_what_green_contexts_took(void)
{
	enum { CONTEXTS = 8 };

	begin();
	const size_t before = free_bytes();
	for (int i = 0; i < CONTEXTS; i++)
		OK(cuGreenCtxDestroy(green_context()));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	begin();
	CHECK(before < free_bytes() + CONTEXTS * 2 * MIB);
}
