/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that takes device memory through the allocation path it is told to, one a line:
 *
 *     take PATH BYTES    -> ok NUMBER | error CODE
 *     give NUMBER        -> ok | error CODE
 *     sync | trim        -> ok | error CODE    wait for the card; let pools and graphs keep nothing
 *     info               -> ok FREE TOTAL
 *
 *     allocation_program [DEVICE]    device 0 unless told
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocation_paths.h"

#define MOST 4096

static struct held holding[MOST];

static void die(const char *what, CUresult result)
{
	fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
	exit(2);
}

static const struct allocation_path *requested_path(const char *name)
{
	const struct allocation_path *path = allocation_path_named(name);

	if (path)
		return path;
	fprintf(stderr, "unknown allocation path %s\n", name);
	exit(2);
}

/* The number of what was taken, or minus the error. */
static int take(const struct allocation_path *path, size_t bytes)
{
	struct held held = {.path = path, .bytes = bytes};
	CUresult result = path->take(&held);
	int number = 0;

	if (result != CUDA_SUCCESS)
		return -(int)result;
	while (number < MOST && holding[number].path)
		number++;
	if (number == MOST)
		die("too much is held", CUDA_SUCCESS);
	holding[number] = held;
	return number;
}

static CUresult give(int number)
{
	struct held *held = &holding[number];
	CUresult result = held->path->give(held);

	if (result == CUDA_SUCCESS)
		held->path = NULL;
	return result;
}

static void answer(CUresult result)
{
	if (result == CUDA_SUCCESS)
		printf("ok\n");
	else
		printf("error %d\n", (int)result);
}

static void answer_info(void)
{
	size_t left, total;
	CUresult result = cuMemGetInfo_v2(&left, &total);

	if (result == CUDA_SUCCESS)
		printf("ok %zu %zu\n", left, total);
	else
		answer(result);
}

static void serve(void)
{
	char line[128], word[16], name[32];
	size_t number;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "take %31s %zu", name, &number) == 2) {
			int taken = take(requested_path(name), number);
			if (taken >= 0)
				printf("ok %d\n", taken);
			else
				printf("error %d\n", -taken);
		} else if (sscanf(line, "give %zu", &number) == 1 && number < MOST) {
			answer(give((int)number));
		} else if (sscanf(line, "%15s", word) != 1) {
			continue;
		} else if (strcmp(word, "sync") == 0) {
			answer(cuCtxSynchronize());
		} else if (strcmp(word, "trim") == 0) {
			answer(allocation_trim());
		} else if (strcmp(word, "info") == 0) {
			answer_info();
		} else {
			fprintf(stderr, "not understood: %s", line);
			exit(2);
		}
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	CUresult result = allocation_open(argc > 1 ? (CUdevice)strtol(argv[1], NULL, 10) : 0);

	if (result != CUDA_SUCCESS)
		die("start", result);
	serve();
	return 0;
}
