/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that starts work in the way that it is told to, one a line:
 *
 *     start SYMBOL [TIMES]  in a thread of its own; no answer
 *     join                  -> ok RESULT   of that thread's calls, the first that failed
 *     given                 -> ok NS       card time that the driver was ever given
 *     sync                  -> ok RESULT   waits for the card
 *     duration NS           -> ok RESULT   of kernels, and of each of the graph's two
 *
 *     starts LOOKUP    finds the driver by LOOKUP (lookups.h), and says first what it can start:
 *                   "SYMBOL here|none" each, and "ready"
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "simulator/device.h"
#include "starts.h"

static struct {
	const struct start *start;
	unsigned long times;
	pthread_t thread;
	CUresult result;
} running;

static _Noreturn void die(const char *what, CUresult result)
{
	fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
	exit(2);
}

static const struct start *start_named(const char *symbol)
{
	for (size_t i = 0; i < start_count; i++)
		if (strcmp(starts[i].symbol, symbol) == 0)
			return &starts[i];
	die(symbol, CUDA_ERROR_NOT_FOUND);
}

static void *run(void *unused)
{
	running.result = starts_enter();
	for (unsigned long i = 0; i < running.times && running.result == CUDA_SUCCESS; i++)
		running.result = running.start->call();
	return unused;
}

static void start(const char *symbol, unsigned long times)
{
	running.start = start_named(symbol);
	running.times = times;
	if (pthread_create(&running.thread, NULL, run, NULL) != 0)
		die("thread", CUDA_ERROR_UNKNOWN);
}

/* As the machine has it: whatever stands before the driver has no part in this. */
static uint64_t given_ns(void)
{
	static const struct sim_device *file;
	uint64_t sum = 0;

	if (!file) {
		int fd = open(getenv(SIM_DEVICE_ENV), O_RDONLY | O_CLOEXEC);
		file = fd < 0 ? MAP_FAILED
			      : mmap(NULL, SIM_FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
		if (file == MAP_FAILED)
			die(SIM_DEVICE_ENV, CUDA_ERROR_UNKNOWN);
	}
	for (unsigned i = 0; i < SIM_CONTEXTS; i++)
		sum += atomic_load(&file->cards[0].contexts[i].submitted_ns);
	return sum;
}

static uint64_t answer_to(const char *word, uint64_t number)
{
	if (strcmp(word, "given") == 0)
		return given_ns();
	if (strcmp(word, "sync") == 0)
		return starts_synchronize();
	if (strcmp(word, "duration") == 0)
		return starts_set_duration(number);
	if (strcmp(word, "join") != 0)
		die(word, CUDA_ERROR_NOT_FOUND);
	pthread_join(running.thread, NULL);
	return running.result;
}

static void serve(void)
{
	char line[128], word[16], symbol[64];

	while (fgets(line, sizeof(line), stdin)) {
		unsigned long long number = 1;
		if (sscanf(line, "start %63s %llu", symbol, &number) >= 1) {
			start(symbol, number);
			continue;
		}
		sscanf(line, "%15s %llu", word, &number);
		printf("ok %" PRIu64 "\n", answer_to(word, number));
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	CUresult result = starts_open(lookup_named(argv[1]));
	if (result != CUDA_SUCCESS)
		die("start", result);
	for (size_t i = 0; i < start_count; i++)
		printf("%s %s\n", starts[i].symbol, starts[i].here ? "here" : "none");
	printf("ready\n");
	fflush(stdout);
	serve();
	return 0;
}
