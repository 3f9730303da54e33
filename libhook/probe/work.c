/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and kernels.
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH_NS 10000000ULL

/* Spins for duration_ns on one thread: runs on a GPU of any architecture, because it is
 * JIT-compiled from PTX, and the simulator reads the same parameter. */
static const char spin_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			       ".visible .entry spin(.param .u64 duration_ns)\n{\n"
			       "\t.reg .u64 %start, %now, %span, %want;\n\t.reg .pred %again;\n"
			       "\tld.param.u64 %want, [duration_ns];\n"
			       "\tmov.u64 %start, %globaltimer;\n"
			       "loop:\n\tmov.u64 %now, %globaltimer;\n"
			       "\tsub.u64 %span, %now, %start;\n"
			       "\tsetp.lt.u64 %again, %span, %want;\n"
			       "\t@%again bra loop;\n\tret;\n}\n";

static unsigned long long clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec;
}

static CUresult spin_function(CUfunction *function)
{
	CUmodule module;
	CUresult result = driver_cuModuleLoadData(&module, spin_ptx);

	return result == CUDA_SUCCESS ? driver_cuModuleGetFunction(function, module, "spin")
				      : result;
}

void work_spin(struct probe *probe, unsigned long long duration_ns, unsigned long long times)
{
	void *parameters[] = {&duration_ns};
	unsigned long long start;
	CUfunction function;
	CUresult result;

	if (!memory_ready(probe))
		return;
	result = spin_function(&function);
	start = clock_ns();
	for (unsigned long long i = 0; i < times && result == CUDA_SUCCESS; i++)
		result = driver_cuLaunchKernel(
			function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	if (result == CUDA_SUCCESS)
		result = driver_cuCtxSynchronize();
	printf("{\"event\":\"spin\",\"asked_ns\":%llu,\"took_ns\":%llu,\"code\":%d,"
	       "\"result\":\"%s\"}\n",
		duration_ns * times, clock_ns() - start, (int)result, driver_error_name(result));
}

static CUresult batch_launch(
	CUfunction function, unsigned long long duration_ns, unsigned long long times, CUevent end)
{
	void *parameters[] = {&duration_ns};
	CUresult result = CUDA_SUCCESS;

	for (unsigned long long i = 0; i < times && result == CUDA_SUCCESS; i++)
		result = driver_cuLaunchKernel(
			function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	return result == CUDA_SUCCESS ? driver_cuEventRecord(end, NULL) : result;
}

/* Two batches are always on the card or queued: the card has work while the program waits for the
 * first. */
void work_busy(struct probe *probe, unsigned long long duration_ns, unsigned long long for_ns)
{
	const unsigned long long times =
		duration_ns && duration_ns < BATCH_NS ? BATCH_NS / duration_ns : 1;
	unsigned long long start, batches = 0;
	CUevent ends[2] = {NULL, NULL};
	CUfunction function;
	CUresult result;

	if (!memory_ready(probe))
		return;
	result = spin_function(&function);
	for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++)
		result = driver_cuEventCreate(&ends[i], CU_EVENT_DISABLE_TIMING);
	start = clock_ns();
	while (result == CUDA_SUCCESS && clock_ns() - start < for_ns) {
		result = batch_launch(function, duration_ns, times, ends[batches % 2]);
		batches++;
		if (result == CUDA_SUCCESS && batches > 1)
			result = driver_cuEventSynchronize(ends[batches % 2]);
	}
	if (result == CUDA_SUCCESS)
		result = driver_cuCtxSynchronize();
	printf("{\"event\":\"busy\",\"kernels\":%llu,\"asked_ns\":%llu,\"took_ns\":%llu,"
	       "\"code\":%d,\"result\":\"%s\"}\n",
		batches * times, batches * times * duration_ns, clock_ns() - start, (int)result,
		driver_error_name(result));
}

void work_copy(struct probe *probe, size_t bytes)
{
	unsigned char *sent = malloc(bytes), *back = calloc(1, bytes);
	CUdeviceptr pointer = 0;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	bool same = false;

	if (sent && back && memory_ready(probe)) {
		for (size_t i = 0; i < bytes; i++)
			sent[i] = (unsigned char)(i * 31 + 7);
		result = driver_cuMemAlloc_v2(&pointer, bytes);
		if (result == CUDA_SUCCESS)
			result = driver_cuMemcpyHtoD_v2(pointer, sent, bytes);
		if (result == CUDA_SUCCESS)
			result = driver_cuMemcpyDtoH_v2(back, pointer, bytes);
		same = result == CUDA_SUCCESS && !memcmp(sent, back, bytes);
		if (pointer)
			driver_cuMemFree_v2(pointer);
		printf("{\"event\":\"copy\",\"bytes\":%zu,\"same\":%s,\"code\":%d,"
		       "\"result\":\"%s\"}\n",
			bytes, same ? "true" : "false", (int)result, driver_error_name(result));
	}
	free(sent);
	free(back);
}
