/* SPDX-License-Identifier: Apache-2.0
 *
 * A program as nvcc links it by default: NVIDIA's runtime library is in it, and finds the driver.
 *
 *     cudart [fill]
 *
 * Prints what child/application.py prints. The runtime's functions are declared here: its headers
 * are not everywhere, and have not changed these since CUDA 3.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)64 << 20)
#define CHUNKS (1 << 14) /* a terabyte: more than any card has */
#define CHUNK_VALUE 3
#define SAMPLE_BYTES 4096

enum { COPY_TO_DEVICE = 1, COPY_TO_HOST = 2 }; /* cudaMemcpyKind */

int cudaMalloc(void **at, size_t bytes);
int cudaMemGetInfo(size_t *available, size_t *total);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemset(void *at, int value, size_t bytes);
const char *cudaGetErrorName(int error);
const char *cudaGetErrorString(int error);

static void check(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "%s: %s: %s\n", what, cudaGetErrorName(error),
			cudaGetErrorString(error));
		_exit(1); /* a runtime without a driver cannot clear up */
	}
}

#define OK(call) check(call, #call)

/* The sum of bytes, of which half was copied to the card, and half was set there. */
static unsigned long work(void)
{
	unsigned char sample[SAMPLE_BYTES];
	unsigned long sum = 0;
	char *at;

	memset(sample, 1, sizeof(sample));
	OK(cudaMalloc((void **)&at, sizeof(sample)));
	OK(cudaMemcpy(at, sample, sizeof(sample), COPY_TO_DEVICE));
	OK(cudaMemset(at + sizeof(sample) / 2, CHUNK_VALUE, sizeof(sample) / 2));
	memset(sample, 0, sizeof(sample));
	OK(cudaMemcpy(sample, at, sizeof(sample), COPY_TO_HOST));
	for (size_t each = 0; each < sizeof(sample); each++)
		sum += sample[each];
	return sum;
}

/* Allocate until it is refused; return the error. */
static int fill(void)
{
	int error = 0;
	void *at;

	for (int chunk = 0; chunk < CHUNKS && !error; chunk++)
		error = cudaMalloc(&at, CHUNK_BYTES);
	return error;
}

int main(int count, char **words)
{
	size_t available, total;
	int error = 0;

	OK(cudaMemGetInfo(&available, &total));
	const unsigned long sum = work();
	if (count > 1 && strcmp(words[1], "fill") == 0)
		error = fill();
	printf("{\"total\": %zu, \"result\": %lu, \"refused\": \"%s\"}\n", total, sum,
		error ? cudaGetErrorString(error) : "");
	return 0;
}
