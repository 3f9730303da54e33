/* SPDX-License-Identifier: Apache-2.0
 *
 * Work in its order: launches and events; and the modules that kernels come from. A
 * card's own times are compared with what the work takes at least.
 */
#include "contract.h"

#define LONG (60000 * MS) /* work that is still there when the process ends */

void work_that_is_not_done_is_not_ready(void)
{
	begin();
	CUstream busy = stream_new(), idle = stream_new();
	CUevent event = event_new(CU_EVENT_DISABLE_TIMING);

	OK(cuEventQuery(event)); /* never recorded */
	OK(launch_ns(busy, LONG));
	OK(cuEventRecord(event, busy));
	IS(CUDA_ERROR_NOT_READY, cuStreamQuery(busy));
	IS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	OK(cuStreamQuery(idle));
	OK(cuStreamWaitEvent(idle, event, 0));
	OK(launch_ns(idle, 1000));
	IS(CUDA_ERROR_NOT_READY, cuStreamQuery(idle));
}

void many_events_are_reached_in_their_order(void)
{
	enum { EVENTS = 1536 };
	static CUevent events[EVENTS];

	begin();
	for (int i = 0; i < EVENTS; i++) {
		events[i] = event_new(0);
		OK(launch_ns(NULL, 1000));
		OK(cuEventRecord(events[i], NULL));
	}
	OK(cuCtxSynchronize());
	for (int i = 1; i < EVENTS; i++)
		CHECK(elapsed_ms(events[i - 1], events[i]) > 0.0F);
	for (int i = 0; i < EVENTS; i++)
		OK(cuEventDestroy_v2(events[i]));
}

void both_forms_tell_the_same_time_between_events(void)
{
	float elapsed;

	begin();
	CUevent start = event_new(0), end = event_new(0);

	OK(cuEventRecord(start, NULL));
	OK(launch_ns(NULL, MS));
	OK(cuEventRecord(end, NULL));
	OK(cuCtxSynchronize());
	OK(cuEventElapsedTime_v2(&elapsed, start, end));
	CHECK(elapsed > 0.0F && elapsed == elapsed_ms(start, end));
}

#define HEAD ".version 6.3\n.target sm_75\n.address_size 64\n"
#define TABLE_BYTES ((size_t)64 << 20)

static const char big[] = HEAD ".visible .global .align 4 .b8 table[67108864];\n"
			       ".visible .entry idle() { ret; }\n";

void a_module_takes_memory_until_it_is_unloaded(void)
{
	CUdeviceptr pointer;
	CUmodule module;
	size_t bytes;

	begin();
	const size_t before = free_bytes();
	OK(cuModuleLoadData(&module, big));
	OK(cuModuleGetGlobal_v2(&pointer, &bytes, module, "table"));
	EQUAL(bytes, TABLE_BYTES);
	OK(cuMemsetD8_v2(pointer, 1, bytes));
	CHECK(before - free_bytes() >= bytes);
	OK(cuModuleUnload(module));
	UNCHANGED(before);
	fill(TABLE_BYTES / 2);
	FAILS(cuModuleLoadData(&module, big) ||
		cuModuleGetGlobal_v2(&pointer, &bytes, module, "table"));
	empty();
}

void a_library_takes_memory_where_it_is_used(void)
{
	CUlibrary library;
	CUkernel kernel;

	begin();
	const size_t before = free_bytes();
	OK(cuLibraryLoadData(&library, big, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "idle"));
	for (int i = 0; i < 2; i++) {
		OK(cuLaunchKernel(
			(CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		CHECK(before - free_bytes() >= TABLE_BYTES &&
			before - free_bytes() < 2 * TABLE_BYTES);
	}
	OK(cuCtxSynchronize());
	OK(cuLibraryUnload(library));
	UNCHANGED(before);
}

void a_managed_variable_is_given_back_with_its_module(void)
{
	CUdeviceptr pointer;
	CUmodule module;
	size_t bytes;

	begin();
	const size_t before = free_bytes();
	for (int i = 0; i < 4; i++) {
		OK(cuModuleLoadData(&module, HEAD ".visible .global .attribute(.managed) .align 4 "
						  ".b8 shared_table[67108864];\n"));
		OK(cuModuleGetGlobal_v2(&pointer, &bytes, module, "shared_table"));
		EQUAL(bytes, TABLE_BYTES);
		OK(cuMemPrefetchAsync(pointer, bytes, 0, NULL));
		OK(cuCtxSynchronize());
		((char *)(uintptr_t)pointer)[bytes - 1] = 'x';
		OK(cuModuleUnload(module));
	}
	/* A card takes its memory in such chunks, and keeps some. */
	CHECK(before <= free_bytes() + 2 * TABLE_BYTES);
}
