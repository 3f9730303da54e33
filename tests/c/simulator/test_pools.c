/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: what they reserve, keep and give back, and what another process may have of it.
 */
#include "made.h"

#include "expect.h"
#include "pool.h"

#include <string.h>
#include <unistd.h>

static uint64_t figure(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	uint64_t value;

	EXPECT_EQUAL(cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
	return value;
}

static uint64_t reserved(CUmemoryPool pool)
{
	return figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static void set_threshold(CUmemoryPool pool, uint64_t bytes)
{
	EXPECT_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes),
		CUDA_SUCCESS);
}

static CUmemoryPool pool_made(CUmemLocationType type, size_t most_bytes)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {type, 0},
		.maxSize = most_bytes};
	CUmemoryPool pool;

	EXPECT_EQUAL(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
	return pool;
}

static CUdeviceptr taken(CUmemoryPool pool, size_t bytes)
{
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL), CUDA_SUCCESS);
	return pointer;
}

static void small_allocations_share_a_chunk(void)
{
	size_t before = free_bytes();
	CUmemoryPool pool = pool_made(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	CUdeviceptr pointers[64];

	for (int i = 0; i < 64; i++)
		pointers[i] = taken(pool, 1000);
	EXPECT_EQUAL(reserved(pool), POOL_CHUNK_BYTES);
	EXPECT_EQUAL(before - free_bytes(), POOL_CHUNK_BYTES);
	EXPECT_EQUAL(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 64 * 1024);
	for (int i = 1; i < 64; i++)
		EXPECT_EQUAL(pointers[i] - pointers[i - 1], 1024);
	for (int i = 0; i < 64; i += 2)
		EXPECT_EQUAL(cuMemFreeAsync(pointers[i], NULL), CUDA_SUCCESS);
	for (int i = 1; i < 64; i += 2)
		EXPECT_EQUAL(cuMemFreeAsync(pointers[i], NULL), CUDA_SUCCESS);
	/* The parts are one again. */
	EXPECT_EQUAL(taken(pool, POOL_CHUNK_BYTES), pointers[0]);
	EXPECT_EQUAL(reserved(pool), POOL_CHUNK_BYTES);
	pointers[1] = taken(pool, 1);
	EXPECT_EQUAL(reserved(pool), 2 * POOL_CHUNK_BYTES);
	/* A destroyed pool goes with the last of what it holds. */
	EXPECT_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointers[0]), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), POOL_CHUNK_BYTES);
	EXPECT_EQUAL(cuMemFreeAsync(pointers[1], NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void a_pool_keeps_up_to_its_threshold_once_the_program_has_waited(void)
{
	size_t before = free_bytes();
	CUdeviceptr one, other;
	CUmemoryPool pool;

	EXPECT_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	set_threshold(pool, POOL_CHUNK_BYTES);
	EXPECT_EQUAL(cuMemAllocAsync(&one, POOL_CHUNK_BYTES, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAllocAsync(&other, 2 * POOL_CHUNK_BYTES, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 3 * POOL_CHUNK_BYTES);
	EXPECT_EQUAL(cuMemFreeAsync(one, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(other, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(other, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(reserved(pool), 3 * POOL_CHUNK_BYTES);
	EXPECT_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), POOL_CHUNK_BYTES);
	set_threshold(pool, 0);
	EXPECT_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= 3 * POOL_CHUNK_BYTES);
}

static void a_trim_leaves_what_is_allocated(void)
{
	CUmemoryPool pool = pool_made(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	CUdeviceptr kept = taken(pool, MIB), gone = taken(pool, 40 * MIB);

	set_threshold(pool, UINT64_MAX);
	EXPECT_EQUAL(cuMemFreeAsync(gone, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(pool), 3 * POOL_CHUNK_BYTES);
	EXPECT_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(reserved(pool), POOL_CHUNK_BYTES);
	EXPECT_EQUAL(cuMemsetD8_v2(kept, 1, MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(kept, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
}

static void a_pool_ends_at_its_greatest_size_or_the_cards(void)
{
	CUmemoryPool pool = pool_made(CU_MEM_LOCATION_TYPE_DEVICE, 40 * MIB);
	size_t before = free_bytes();
	CUdeviceptr one, more, all;

	one = taken(pool, 20 * MIB);
	EXPECT_EQUAL(reserved(pool), POOL_CHUNK_BYTES);
	EXPECT_EQUAL(
		cuMemAllocFromPoolAsync(&more, 20 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	more = taken(pool, 7 * MIB);
	EXPECT_EQUAL(cuMemFreeAsync(more, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(one, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	/* Where the card has no whole chunk left, a pool grows by what it needs. */
	EXPECT_EQUAL(cuMemAlloc_v2(&all, before - 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAllocAsync(&one, 3 * MIB, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), 0);
	EXPECT_EQUAL(cuMemAllocAsync(&more, 3 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuMemFreeAsync(one, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(all), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void what_one_pool_keeps_another_can_have(void)
{
	CUmemoryPool one = pool_made(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	CUmemoryPool other = pool_made(CU_MEM_LOCATION_TYPE_DEVICE, 0);
	size_t before = free_bytes();
	CUdeviceptr pointer;

	set_threshold(one, UINT64_MAX);
	EXPECT_EQUAL(cuMemFreeAsync(taken(one, before), NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), 0);
	pointer = taken(other, before);
	EXPECT_EQUAL(reserved(one), 0);
	EXPECT_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(one), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(other), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void a_pool_of_the_host_takes_nothing_of_the_card(void)
{
	size_t before = free_bytes();
	CUmemoryPool pool = pool_made(CU_MEM_LOCATION_TYPE_HOST, 0), found;
	CUdeviceptr pointer = taken(pool, 10 * MIB);
	CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0},
		      card = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	unsigned int type;

	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemsetD8_v2(pointer, 3, 10 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(((unsigned char *)(uintptr_t)pointer)[10 * MIB - 1], 3);
	EXPECT_EQUAL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer),
		CUDA_SUCCESS);
	EXPECT_EQUAL(type, CU_MEMORYTYPE_HOST);
	EXPECT_EQUAL(cuMemSetMemPool(&card, CU_MEM_ALLOCATION_TYPE_PINNED, pool),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemGetMemPool(&found, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
	EXPECT(found == pool);
	EXPECT_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemGetMemPool(&found, &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
	EXPECT(found != pool);
}

static void what_is_imported_is_counted_where_it_was_made(void)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemPoolPtrExportData told;
	CUmemoryPool pool, import;
	CUdeviceptr first, pointer, seen;
	unsigned int word = 0;
	size_t after;
	int fd;

	EXPECT_EQUAL(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
	first = taken(pool, 100);
	pointer = taken(pool, 8000);
	EXPECT_EQUAL(cuMemPoolExportToShareableHandle(
			     &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
	after = free_bytes();
	EXPECT_EQUAL(cuMemPoolImportFromShareableHandle(&import, (void *)(intptr_t)fd,
			     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
	close(fd);
	EXPECT_EQUAL(cuMemAllocFromPoolAsync(&seen, 1, import, NULL), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_EQUAL(cuMemPoolExportPointer(&told, pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolImportPointer(&seen, import, &told), CUDA_SUCCESS);
	EXPECT(seen != pointer);
	EXPECT_EQUAL(free_bytes(), after);
	EXPECT_EQUAL(reserved(import), 0);
	EXPECT_EQUAL(cuMemsetD32_v2(pointer + 4000, 0xcafe, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoH_v2(&word, seen + 4000, 4), CUDA_SUCCESS);
	EXPECT_EQUAL(word, 0xcafe);
	EXPECT_EQUAL(cuMemsetD8_v2(seen + 8000, 0, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemFreeAsync(seen, NULL), CUDA_SUCCESS);
	memset(&told, 0xff, sizeof(told));
	EXPECT_EQUAL(cuMemPoolImportPointer(&seen, import, &told), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemPoolDestroy(import), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(first, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

void test_pools(void)
{
	size_t before = free_bytes();

	a_pool_keeps_up_to_its_threshold_once_the_program_has_waited();
	a_trim_leaves_what_is_allocated();
	a_pool_ends_at_its_greatest_size_or_the_cards();
	what_one_pool_keeps_another_can_have();
	a_pool_of_the_host_takes_nothing_of_the_card();
	what_is_imported_is_counted_where_it_was_made();
	small_allocations_share_a_chunk();
	EXPECT_EQUAL(free_bytes(), before);
}
