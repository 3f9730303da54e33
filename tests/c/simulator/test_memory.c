/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory: how much there is, where it lies, what it holds.
 */
#include "made.h"

#include "expect.h"

#include <string.h>

static void small_allocations_share_two_mebibytes(void)
{
	size_t before = free_bytes();
	CUdeviceptr pointers[512];

	for (int i = 0; i < 512; i++)
		EXPECT_EQUAL(cuMemAlloc_v2(&pointers[i], 4096), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 2 * MIB);
	for (int i = 0; i < 512; i++) {
		EXPECT_EQUAL(pointers[i] % 512, 0);
		for (int j = 0; j < i; j++)
			EXPECT(pointers[i] >= pointers[j] + 4096 ||
				pointers[j] >= pointers[i] + 4096);
	}
	for (int i = 0; i < 512; i++)
		EXPECT_EQUAL(cuMemFree_v2(pointers[i]), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void bigger_ones_take_whole_units(void)
{
	size_t before = free_bytes();
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 3 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void the_last_byte_can_be_had_and_no_more(void)
{
	size_t before = free_bytes();
	CUdeviceptr all, more;

	EXPECT_EQUAL(cuMemAlloc_v2(&all, before), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), 0);
	EXPECT_EQUAL(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuMemAllocAsync(&more, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuMemFree_v2(all), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&all, before + 1), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuMemAlloc_v2(&all, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(free_bytes(), before);
}

static void what_was_never_allocated_cannot_be_freed_or_copied(void)
{
	CUdeviceptr pointer;
	char byte = 0;

	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer + 512), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemcpyHtoD_v2(pointer + 1000, &byte, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(
		cuMemcpyDtoH_v2(&byte, (CUdeviceptr)(uintptr_t)&byte, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
}

static void bytes_come_back_as_they_went(void)
{
	static unsigned char out[100000], in[100000];
	CUdeviceptr one, other;

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (unsigned char)(i * 31 + i / 256);
	EXPECT_EQUAL(cuMemAlloc_v2(&one, sizeof(out)), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&other, 5 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyHtoD_v2(one, out, sizeof(out)), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoD_v2(other + 3 * MIB, one, sizeof(out)), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD8_v2(one, 0xee, sizeof(out)), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoHAsync_v2(in, other + 3 * MIB, sizeof(in), CU_STREAM_PER_THREAD),
		CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(memcmp(in, out, sizeof(out)), 0);
	EXPECT_EQUAL(cuMemcpy((CUdeviceptr)(uintptr_t)in, one, sizeof(in)), CUDA_SUCCESS);
	EXPECT_EQUAL(in[0], 0xee);
	EXPECT_EQUAL(in[sizeof(in) - 1], 0xee);
	EXPECT_EQUAL(cuMemFree_v2(one), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(other), CUDA_SUCCESS);
}

static void memory_that_is_allocated_again_is_empty_of_the_last_owners_bytes(void)
{
	unsigned char byte = 0xff;
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD8_v2(pointer, 0xaa, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoH_v2(&byte, pointer, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(byte, 0);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void rows_are_copied_by_their_pitch(void)
{
	unsigned char out[4][10], in[4][10];
	size_t pitch;
	CUdeviceptr pointer;
	CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = out,
		.srcPitch = 10,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.WidthInBytes = 10,
		.Height = 4};

	for (int i = 0; i < 40; i++)
		out[i / 10][i % 10] = (unsigned char)i;
	EXPECT_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 10, 4, 4), CUDA_SUCCESS);
	EXPECT_EQUAL(pitch, 512);
	copy.dstDevice = pointer;
	copy.dstPitch = pitch;
	EXPECT_EQUAL(cuMemcpy2D_v2(&copy), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoH_v2(in[3], pointer + 3 * pitch, 10), CUDA_SUCCESS);
	EXPECT_EQUAL(memcmp(in[3], out[3], 10), 0);
	copy.Height = 5;
	EXPECT_EQUAL(cuMemcpy2D_v2(&copy), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void a_mapping_shows_the_memory_that_was_made(void)
{
	const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	size_t before = free_bytes();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;
	unsigned int word = 0;

	EXPECT_EQUAL(cuMemAddressReserve(&pointer, 8 * MIB, 0, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemCreate(&handle, 4 * MIB, &properties, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMemMap(pointer, 4 * MIB, 0, handle, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemMap(pointer + 4 * MIB, 2 * MIB, 2 * MIB, handle, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD32_v2(pointer, 1, 1), CUDA_ERROR_INVALID_VALUE); /* no access yet */
	EXPECT_EQUAL(cuMemSetAccess(pointer, 6 * MIB, &access, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD32_v2(pointer + 2 * MIB, 0xfeedface, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoH_v2(&word, pointer + 4 * MIB, 4), CUDA_SUCCESS);
	EXPECT_EQUAL(word, 0xfeedface);
	EXPECT_EQUAL(cuMemsetD8_v2(pointer + 6 * MIB, 1, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB); /* the mappings hold it */
	EXPECT_EQUAL(cuMemAddressFree(pointer, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemUnmap(pointer, 6 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemAddressFree(pointer, 8 * MIB), CUDA_SUCCESS);
}

static void managed_memory_is_counted_where_it_was_prefetched_to(void)
{
	size_t before = free_bytes();
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuMemAllocManaged(&pointer, 6 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	((char *)(uintptr_t)pointer)[5] = 'x'; /* the host's as well */
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemPrefetchAsync(pointer, 6 * MIB, 0, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 6 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void managed_memory_may_be_larger_than_the_card_and_makes_room(void)
{
	size_t before = free_bytes();
	CUdeviceptr managed, part, buffer;

	EXPECT_EQUAL(cuMemAllocManaged(&managed, CARD_BYTES + 64 * MIB, CU_MEM_ATTACH_GLOBAL),
		CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPrefetchAsync(managed, CARD_BYTES + 64 * MIB, 0, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before); /* nothing of it has moved to the full card */
	EXPECT_EQUAL(cuMemAllocManaged(&part, 8 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPrefetchAsync(part, 8 * MIB, 0, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPrefetchAsync(part, 8 * MIB, 0, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 8 * MIB); /* and nothing is counted twice */
	/* Other memory moves it to the host. */
	EXPECT_EQUAL(cuMemAlloc_v2(&buffer, before - 2 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), 0);
	EXPECT_EQUAL(device->cards[0].shares[0].managed_bytes, 2 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(part), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), 2 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(buffer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(managed), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void managed_memory_moves_and_ends_with_its_context(void)
{
	size_t before = free_bytes();
	CUdeviceptr pointer;
	CUcontext other, own;

	EXPECT_EQUAL(cuCtxGetCurrent(&own), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxCreate_v2(&other, 0, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAllocManaged(&pointer, 4 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPrefetchAsync(pointer, 4 * MIB, 0, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), CARD_BYTES - RESERVED_BYTES - CONTEXT_BYTES);
	EXPECT_EQUAL(cuCtxPushCurrent_v2(own), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMemPrefetchAsync(pointer, 2 * MIB, 1, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(device->cards[1].shares[0].managed_bytes, 2 * MIB);
	EXPECT_EQUAL(cuMemPrefetchAsync(pointer, 4 * MIB, -1, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(device->cards[1].shares[0].managed_bytes, 0);
	EXPECT_EQUAL(cuMemPrefetchAsync(pointer, 4 * MIB, 0, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPrefetchAsync(pointer, 4 * MIB, 7, NULL), CUDA_ERROR_INVALID_DEVICE);
	EXPECT_EQUAL(cuCtxDestroy_v2(other), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
}

static void a_pointer_is_what_it_was_allocated_as(void)
{
	unsigned int type = 0;
	CUdeviceptr pointer, base;
	size_t bytes;
	void *host;

	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 700), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemHostAlloc(&host, 5000, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 5),
		CUDA_SUCCESS);
	EXPECT_EQUAL(type, CU_MEMORYTYPE_DEVICE);
	EXPECT_EQUAL(cuPointerGetAttribute(
			     &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host),
		CUDA_SUCCESS);
	EXPECT_EQUAL(type, CU_MEMORYTYPE_HOST);
	EXPECT_EQUAL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
			     (CUdeviceptr)(uintptr_t)&type),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMemGetAddressRange_v2(&base, &bytes, pointer + 699), CUDA_SUCCESS);
	EXPECT_EQUAL(base, pointer);
	EXPECT_EQUAL(bytes, 700);
	EXPECT_EQUAL(cuMemFreeHost(host), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void a_destroyed_context_leaves_nothing_behind(void)
{
	size_t before = free_bytes();
	CUcontext context;
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before); /* not the process's first on this card */
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&pointer, 10), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuCtxPushCurrent_v2(context), CUDA_ERROR_INVALID_CONTEXT);
}

void test_memory(void)
{
	EXPECT_EQUAL(free_bytes(), CARD_BYTES - RESERVED_BYTES - CONTEXT_BYTES);
	small_allocations_share_two_mebibytes();
	bigger_ones_take_whole_units();
	the_last_byte_can_be_had_and_no_more();
	what_was_never_allocated_cannot_be_freed_or_copied();
	bytes_come_back_as_they_went();
	memory_that_is_allocated_again_is_empty_of_the_last_owners_bytes();
	rows_are_copied_by_their_pitch();
	a_mapping_shows_the_memory_that_was_made();
	managed_memory_is_counted_where_it_was_prefetched_to();
	managed_memory_may_be_larger_than_the_card_and_makes_room();
	managed_memory_moves_and_ends_with_its_context();
	a_pointer_is_what_it_was_allocated_as();
	a_destroyed_context_leaves_nothing_behind();
}
