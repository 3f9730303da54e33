/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear, physical and managed memory: how it is counted, and what it holds.
 */
#include "contract.h"

#include <string.h>

void linear_memory_is_counted(void)
{
	begin();
	const size_t before = free_bytes(), size = 16 * granule();
	const CUdeviceptr pointer = allocated(size - 1);

	CHECK(before - free_bytes() >= size - 1 && before - free_bytes() < 2 * size);
	OK(cuMemFree_v2(pointer));
	UNCHANGED(before);
}

void small_allocations_share_memory(void)
{
	enum { COUNT = 512, SMALL = 4096 };
	CUdeviceptr pointers[COUNT];

	begin();
	const size_t before = free_bytes();
	for (int i = 0; i < COUNT; i++) {
		pointers[i] = allocated(SMALL);
		EQUAL(pointers[i] % 256, 0);
		for (int j = 0; j < i; j++)
			CHECK(pointers[i] >= pointers[j] + SMALL ||
				pointers[j] >= pointers[i] + SMALL);
	}
	CHECK(before - free_bytes() < COUNT * granule() / 16);
	for (int i = 0; i < COUNT; i++)
		OK(cuMemFree_v2(pointers[i]));
	UNCHANGED(before);
}

void a_full_card_refuses_every_allocation(void)
{
	const CUmemAllocationProp card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	begin();
	const size_t before = free_bytes(), size = 64 * granule();

	fill(0);
	CHECK(free_bytes() < size);
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&pointer, size));
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&pointer, size, NULL));
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, size, &card, 0));
	empty();
	UNCHANGED(before);
	OK(cuMemFree_v2(allocated(size)));
}

void physical_memory_is_held_by_its_handle_and_its_mappings(void)
{
	unsigned int word = 0;

	begin();
	const size_t before = free_bytes(), size = 4 * granule();
	const CUmemGenericAllocationHandle handle = physical(0, size, CU_MEM_HANDLE_TYPE_NONE);
	CUmemGenericAllocationHandle again;

	EQUAL(before - free_bytes(), size);
	const CUdeviceptr one = mapped(handle, size), other = mapped(handle, size);
	EQUAL(before - free_bytes(), size);
	OK(cuMemsetD32_v2(one + size / 2, 0xfeedface, 1));
	OK(cuMemcpyDtoH_v2(&word, other + size / 2, 4));
	EQUAL(word, 0xfeedface);
	OK(cuMemRelease(handle));
	unmap(one, size);
	EQUAL(before - free_bytes(), size);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(other + size / 2)));
	unmap(other, size);
	EQUAL(before - free_bytes(), size);
	OK(cuMemRelease(again));
	UNCHANGED(before);
}

/* A card takes chunks of 64 MiB for it, and keeps some. */
#define MANAGED_BYTES (256 * MIB)
#define KEPT_BYTES (128 * MIB)

void managed_memory_takes_a_card_from_its_use_there_to_its_free(void)
{
	CUdeviceptr pointer;

	begin();
	const size_t before = free_bytes(), size = MANAGED_BYTES;

	OK(cuMemAllocManaged(&pointer, size, CU_MEM_ATTACH_GLOBAL));
	memset((void *)(uintptr_t)pointer, 'x', size);
	UNCHANGED(before);
	OK(cuMemPrefetchAsync(pointer, size, 0, NULL));
	OK(cuCtxSynchronize());
	CHECK(before - free_bytes() >= size - KEPT_BYTES);
	OK(cuMemPrefetchAsync(pointer, size, -1, NULL)); /* it gives nothing back */
	OK(cuCtxSynchronize());
	CHECK(before - free_bytes() >= size - KEPT_BYTES);
	EQUAL(((char *)(uintptr_t)pointer)[size - 1], 'x');
	OK(cuMemFree_v2(pointer));
	CHECK(before <= free_bytes() + KEPT_BYTES);
}

void managed_memory_moves_between_cards(void)
{
	CUcontext own = begin(), second;
	CUdeviceptr pointer;

	OK(cuDevicePrimaryCtxRetain(&second, 1));
	const size_t before = free_bytes(), size = MANAGED_BYTES;
	OK(cuMemAllocManaged(&pointer, size, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemPrefetchAsync(pointer, size, 0, NULL));
	OK(cuCtxSynchronize());
	CHECK(before - free_bytes() >= size - KEPT_BYTES);
	OK(cuCtxSetCurrent(second));
	const size_t there = free_bytes();
	OK(cuMemPrefetchAsync(pointer, size, 1, NULL));
	OK(cuCtxSynchronize());
	CHECK(there - free_bytes() >= size - KEPT_BYTES);
	OK(cuCtxSetCurrent(own));
	CHECK(before <= free_bytes() + KEPT_BYTES);
	IS(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(pointer, size, 99, NULL));
	OK(cuMemFree_v2(pointer));
	OK(cuDevicePrimaryCtxRelease_v2(1));
}

void bound_memory_is_held_by_its_multicast_object(void)
{
	const CUmulticastObjectProp single = {.numDevices = 1, .size = 1};
	CUmemGenericAllocationHandle object;
	size_t size;

	begin();
	if (!attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED))
		skip("this card has no multicast");
	OK(cuMulticastGetGranularity(&size, &single, 0));
	const CUmulticastObjectProp wanted = {.numDevices = 1, .size = 2 * size};
	const size_t before = free_bytes();
	const CUmemGenericAllocationHandle memory = physical(0, size, CU_MEM_HANDLE_TYPE_NONE);

	OK(cuMulticastCreate(&object, &wanted));
	FAILS(cuMulticastBindMem(object, 0, memory, 0, size, 0)); /* no device was added yet */
	OK(cuMulticastAddDevice(object, 0));
	FAILS(cuMulticastAddDevice(object, 0));
	OK(cuMulticastBindMem(object, 0, memory, 0, size, 0));
	FAILS(cuMulticastBindMem(object, 2 * size, memory, 0, size, 0));
	OK(cuMemRelease(memory));
	CHECK(before - free_bytes() >= size);
	OK(cuMulticastUnbind(object, 0, 0, size));
	OK(cuMemRelease(object));
	UNCHANGED(before);
}
