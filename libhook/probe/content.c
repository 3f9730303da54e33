/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a pattern into the linear memory that the probe holds, and compares the memory with it
 * later: what an eviction, a restore or a move has kept.
 */
#include "probe.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK_WORDS ((size_t)1 << 17) /* 1 MiB */

typedef CUresult copy_chunk(CUdeviceptr device, uint64_t *host, size_t bytes, size_t *different,
	uint64_t seed, size_t first);

/* The finalizer of splitmix64: each word depends on all bits of its place and of the seed. */
static uint64_t word_at(uint64_t seed, size_t place)
{
	uint64_t word = seed + ((uint64_t)place + 1) * UINT64_C(0x9e3779b97f4a7c15);

	word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
	return word ^ (word >> 31);
}

static CUresult chunk_write(CUdeviceptr device, uint64_t *host, size_t bytes, size_t *different,
	uint64_t seed, size_t first)
{
	(void)different;
	for (size_t i = 0; i < CHUNK_WORDS; i++)
		host[i] = word_at(seed, first + i);
	return driver_cuMemcpyHtoD_v2(device, host, bytes);
}

static CUresult chunk_check(CUdeviceptr device, uint64_t *host, size_t bytes, size_t *different,
	uint64_t seed, size_t first)
{
	CUresult result = driver_cuMemcpyDtoH_v2(host, device, bytes);

	for (size_t i = 0; result == CUDA_SUCCESS && i < bytes / sizeof(*host); i++)
		if (host[i] != word_at(seed, first + i))
			*different += sizeof(*host);
	return result;
}

/* Copies every buffer that has an address, chunk by chunk; the pattern goes on from one to the
 * next. */
static void each_chunk(
	struct probe *probe, const char *event, unsigned long long seed, copy_chunk *copy)
{
	uint64_t *host = malloc(CHUNK_WORDS * sizeof(*host));
	size_t bytes = 0, different = 0;
	CUresult result = host ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t i = 0; i < probe->allocation_count && result == CUDA_SUCCESS; i++) {
		const struct allocation *held = &probe->allocations[i];

		for (size_t at = 0; held->pointer && at < held->bytes && result == CUDA_SUCCESS;) {
			size_t left = held->bytes - at;
			size_t chunk = CHUNK_WORDS * sizeof(*host);

			chunk = left < chunk ? left : chunk;
			result = copy(held->pointer + at, host, chunk, &different, seed,
				(bytes + at) / sizeof(*host));
			at += chunk;
		}
		if (held->pointer)
			bytes += held->bytes;
	}
	printf("{\"event\":\"%s\",\"bytes\":%zu,\"different\":%zu,\"code\":%d,\"result\":\"%s\"}\n",
		event, bytes, different, (int)result, driver_error_name(result));
	free(host);
}

void content_write(struct probe *probe, unsigned long long seed)
{
	if (memory_ready(probe))
		each_chunk(probe, "write", seed, chunk_write);
}

void content_check(struct probe *probe, unsigned long long seed)
{
	if (memory_ready(probe))
		each_chunk(probe, "check", seed, chunk_check);
}
