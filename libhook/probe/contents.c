/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes known bytes into all memory that was taken, and looks whether they are still there: after
 * an eviction, for example.
 */
#include "probe.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)1 << 20)

/* The bytes of one piece of an allocation, different for each of them (xorshift64*). */
static void pattern_write(uint64_t *words, size_t count, uint64_t seed)
{
	uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;

	for (size_t i = 0; i < count; i++) {
		state ^= state >> 12;
		state ^= state << 25;
		state ^= state >> 27;
		words[i] = state * UINT64_C(0x2545F4914F6CDD1D);
	}
}

static uint64_t piece_seed(uint64_t seed, size_t allocation, size_t offset)
{
	return seed * UINT64_C(1000003) + allocation * UINT64_C(65537) + offset / PIECE_BYTES + 1;
}

/* Calls `visit` for each whole word of each allocation that has an address, a piece at a time. */
static CUresult pieces_visit(struct probe *probe, uint64_t seed,
	CUresult (*visit)(CUdeviceptr, uint64_t *, size_t, uint64_t *), uint64_t *wrong_bytes)
{
	uint64_t *piece = malloc(2 * PIECE_BYTES);
	CUresult result = piece ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t at = 0; at < probe->allocation_count && result == CUDA_SUCCESS; at++) {
		const struct allocation *made = &probe->allocations[at];

		for (size_t offset = 0; made->pointer && offset + sizeof(uint64_t) <= made->bytes &&
					result == CUDA_SUCCESS;
			offset += PIECE_BYTES) {
			const size_t rest = made->bytes - offset;
			const size_t bytes = (rest < PIECE_BYTES ? rest : PIECE_BYTES) & ~(size_t)7;

			pattern_write(piece, bytes / sizeof(*piece), piece_seed(seed, at, offset));
			result = visit(made->pointer + offset, piece, bytes, wrong_bytes);
		}
	}
	free(piece);
	return result;
}

static CUresult piece_send(
	CUdeviceptr pointer, uint64_t *piece, size_t bytes, uint64_t *wrong_bytes)
{
	(void)wrong_bytes;
	return driver_cuMemcpyHtoD_v2(pointer, piece, bytes);
}

static CUresult piece_compare(
	CUdeviceptr pointer, uint64_t *piece, size_t bytes, uint64_t *wrong_bytes)
{
	uint64_t *found = piece + PIECE_BYTES / sizeof(*piece);
	const CUresult result = driver_cuMemcpyDtoH_v2(found, pointer, bytes);

	for (size_t i = 0; i < bytes / sizeof(*piece) && result == CUDA_SUCCESS; i++)
		*wrong_bytes += piece[i] == found[i] ? 0 : sizeof(*piece);
	return result;
}

void contents_write(struct probe *probe, unsigned long long seed)
{
	uint64_t wrong_bytes = 0;
	CUresult result;

	if (!memory_ready(probe))
		return;
	result = pieces_visit(probe, seed, piece_send, &wrong_bytes);
	printf("{\"event\":\"write\",\"code\":%d,\"result\":\"%s\"}\n", (int)result,
		driver_error_name(result));
}

void contents_check(struct probe *probe, unsigned long long seed)
{
	uint64_t wrong_bytes = 0;
	CUresult result;

	if (!memory_ready(probe))
		return;
	result = pieces_visit(probe, seed, piece_compare, &wrong_bytes);
	printf("{\"event\":\"check\",\"wrong_bytes\":%" PRIu64 ",\"code\":%d,\"result\":\"%s\"}\n",
		wrong_bytes, (int)result, driver_error_name(result));
}
