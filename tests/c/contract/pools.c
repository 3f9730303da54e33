/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: what they reserve, keep and give back, and what another process may have of it.
 */
#include "contract.h"

#include <unistd.h>

static uint64_t figure(CUmemoryPool pool, CUmemPool_attribute name)
{
	uint64_t value;

	OK(cuMemPoolGetAttribute(pool, name, &value));
	return value;
}

static uint64_t reserved(CUmemoryPool pool)
{
	return figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static void set_threshold(CUmemoryPool pool, uint64_t bytes)
{
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static CUmemoryPool pool_new(CUmemLocationType type, CUmemAllocationHandleType handle_types)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = handle_types,
		.location = {type, 0}};
	CUmemoryPool pool;

	OK(cuMemPoolCreate(&pool, &properties));
	return pool;
}

static CUmemoryPool pool_of_card(void)
{
	return pool_new(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_NONE);
}

static CUdeviceptr taken(CUmemoryPool pool, size_t bytes)
{
	CUdeviceptr pointer;

	OK(cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL));
	return pointer;
}

void small_allocations_of_a_pool_share_memory(void)
{
	enum { COUNT = 64, SMALL = 1000 };
	CUdeviceptr pointers[COUNT];

	begin();
	const size_t before = free_bytes();
	CUmemoryPool pool = pool_of_card();
	for (int i = 0; i < COUNT; i++)
		pointers[i] = taken(pool, SMALL);
	const uint64_t held = reserved(pool);
	CHECK(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= (uint64_t)COUNT * SMALL);
	CHECK(held >= figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) && held < COUNT * granule());
	CHECK(before - free_bytes() >= held);
	for (int i = 0; i < COUNT; i += 2)
		OK(cuMemFreeAsync(pointers[i], NULL));
	for (int i = 1; i < COUNT; i += 2)
		OK(cuMemFreeAsync(pointers[i], NULL));
	EQUAL(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
	/* Its parts are one again. */
	pointers[0] = taken(pool, held);
	EQUAL(reserved(pool), held);
	/* A destroyed pool goes with the last of what it holds. */
	OK(cuMemPoolDestroy(pool));
	CHECK(before - free_bytes() >= held);
	OK(cuMemFree_v2(pointers[0]));
	OK(cuCtxSynchronize());
	UNCHANGED(before);
}

void a_pool_keeps_up_to_its_threshold_once_the_program_has_waited(void)
{
	const size_t size = 128 * MIB;
	CUdeviceptr pointer;
	CUmemoryPool pool;

	begin();
	const size_t before = free_bytes();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	set_threshold(pool, UINT64_MAX);
	OK(cuMemAllocAsync(&pointer, size, NULL));
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(reserved(pool) >= size && before - free_bytes() >= size);
	set_threshold(pool, 0);
	OK(cuMemAllocAsync(&pointer, size, NULL));
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuStreamSynchronize(NULL));
	EQUAL(reserved(pool), 0);
	UNCHANGED(before);
	CHECK(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= size);
}

void a_trim_leaves_what_is_allocated(void)
{
	begin();
	CUmemoryPool pool = pool_of_card();
	const CUdeviceptr kept = taken(pool, MIB), gone = taken(pool, 128 * MIB);

	set_threshold(pool, UINT64_MAX);
	OK(cuMemFreeAsync(gone, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(reserved(pool) >= 129 * MIB);
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(reserved(pool) >= MIB && reserved(pool) < 128 * MIB);
	OK(cuMemsetD8_v2(kept, 1, MIB));
	OK(cuMemFreeAsync(kept, NULL));
	OK(cuCtxSynchronize());
}

void a_pool_of_the_host_takes_nothing_of_the_card(void)
{
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	const size_t size = 32 * MIB;
	unsigned int type;

	begin();
	CUmemoryPool pool = pool_new(CU_MEM_LOCATION_TYPE_HOST, CU_MEM_HANDLE_TYPE_NONE);
	OK(cuMemPoolSetAccess(pool, &access, 1));
	const size_t before = free_bytes();
	const CUdeviceptr pointer = taken(pool, size);
	CHECK(before - free_bytes() < size);
	OK(cuMemsetD8_v2(pointer, 3, size));
	EQUAL(((unsigned char *)(uintptr_t)pointer)[size - 1], 3);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
	EQUAL(type, CU_MEMORYTYPE_HOST);
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(pool));
}

/* Answers with a word of the memory that it imports. */
static void import_pool(int socket)
{
	CUmemPoolPtrExportData exported;
	CUdeviceptr pointer, other;
	CUmemoryPool pool;
	uint32_t word = 0;
	const int fd = hear_fd(socket);

	hear_bytes(socket, &exported, sizeof(exported));
	begin();
	const size_t before = free_bytes();
	OK(cuMemPoolImportFromShareableHandle(
		&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	FAILS(cuMemAllocFromPoolAsync(&other, 1, pool, NULL));
	OK(cuMemPoolImportPointer(&pointer, pool, &exported));
	OK(cuMemcpyDtoH_v2(&word, pointer + 4000, sizeof(word)));
	CHECK(before - free_bytes() < 128 * MIB);
	say(socket, word);
	hear(socket);
}

void an_imported_pool_shows_its_makers_memory_and_takes_none(void)
{
	struct peer peer = peer_start(import_pool);
	CUmemPoolPtrExportData exported;
	int fd;

	begin();
	CUmemoryPool pool =
		pool_new(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	const CUdeviceptr first = taken(pool, 100), pointer = taken(pool, 128 * MIB);
	OK(cuMemsetD32_v2(pointer, 0x5eed, 1024));
	OK(cuMemPoolExportToShareableHandle(
		&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolExportPointer(&exported, pointer));
	say_fd(peer.socket, fd);
	close(fd);
	say_bytes(peer.socket, &exported, sizeof(exported));
	EQUAL(hear(peer.socket), 0x5eed);
	peer_kill(peer);
	OK(cuMemsetD32_v2(pointer, 1, 1024)); /* still there */
	OK(cuMemFreeAsync(first, NULL));
	OK(cuMemFreeAsync(pointer, NULL));
	OK(cuCtxSynchronize());
}
