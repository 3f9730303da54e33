/* SPDX-License-Identifier: Apache-2.0
 *
 * A client that waits for its kernels: what a program pauses between them is its own, not Python's.
 *
 *     waiter PTX BLOCKS        kernel `work` of file PTX, on so many blocks of 256 threads
 *
 * Reads "work BEGIN_NS DURATION_NS ROUNDS EVERY polls|sleeps SECONDS" from stdin: from BEGIN_NS of
 * CLOCK_MONOTONIC on, launches kernels of so many rounds and waits after EVERY of them. Answers
 * with the kernels done and the time that they took, as JSON.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_driver.h"

#define THREADS 256
#define IMAGE_BYTES 8192
#define SECOND_NS 1000000000

static void check(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
		exit(1);
	}
}

#define OK(call) check(call, #call)

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t moment_ns)
{
	const struct timespec time = {
		(time_t)(moment_ns / SECOND_NS), (long)(moment_ns % SECOND_NS)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static CUfunction kernel_of(const char *path)
{
	static char image[IMAGE_BYTES];
	CUfunction kernel;
	CUmodule module;
	FILE *file = fopen(path, "re");

	if (!file || fread(image, 1, sizeof(image) - 1, file) == 0) {
		perror(path);
		exit(1);
	}
	fclose(file);
	OK(cuModuleLoadData(&module, image));
	OK(cuModuleGetFunction(&kernel, module, "work"));
	return kernel;
}

static void wait_for(CUevent event, int polls)
{
	CUresult result;

	if (!polls) {
		OK(cuEventSynchronize(event));
		return;
	}
	while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
		;
	check(result, "cuEventQuery");
}

int main(int argc, char **argv)
{
	uint64_t begin, duration_ns, rounds;
	unsigned int every;
	char way[8], line[256];
	double seconds;
	CUcontext context;
	CUdeviceptr result;
	CUevent event;

	if (argc != 3)
		return 2;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	const CUfunction kernel = kernel_of(argv[1]);
	const unsigned int blocks = (unsigned int)atoi(argv[2]);

	OK(cuMemAlloc_v2(&result, sizeof(uint64_t)));
	OK(cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
	puts("{\"event\": \"driver\"}");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t done = 0;

		if (sscanf(line, "work %" SCNu64 " %" SCNu64 " %" SCNu64 " %u %7s %lf", &begin,
			    &duration_ns, &rounds, &every, way, &seconds) != 6)
			return 2;
		void *parameters[] = {&duration_ns, &rounds, &result};
		const int polls = !strcmp(way, "polls");

		sleep_until(begin);
		const uint64_t end = begin + (uint64_t)(seconds * SECOND_NS);
		while (now_ns() < end) {
			for (unsigned int i = 0; i < every; i++)
				OK(cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, NULL,
					parameters, NULL));
			OK(cuEventRecord(event, NULL));
			wait_for(event, polls);
			done += every;
		}
		printf("{\"event\": \"work\", \"done\": %" PRIu64 ", \"took_ns\": %" PRIu64 "}\n",
			done, now_ns() - begin);
		fflush(stdout);
	}
	return 0;
}
