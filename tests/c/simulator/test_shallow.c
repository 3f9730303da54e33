/* SPDX-License-Identifier: Apache-2.0
 *
 * What is simulated as far as memory goes: multicast objects, green contexts, access between cards.
 * The test machine has two cards of 10 multiprocessors that are of compute capability 9.
 */
#include "made.h"

#include "expect.h"

static CUmemGenericAllocationHandle physical(CUdevice ordinal, size_t bytes)
{
	const CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};
	CUmemGenericAllocationHandle handle;

	EXPECT_EQUAL(cuMemCreate(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
	return handle;
}

static CUmemGenericAllocationHandle team(unsigned int devices, size_t bytes)
{
	const CUmulticastObjectProp wanted = {.numDevices = devices, .size = bytes};
	CUmemGenericAllocationHandle object;
	size_t granularity;

	EXPECT_EQUAL(cuMulticastGetGranularity(&granularity, &wanted, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(bytes % granularity, 0);
	EXPECT_EQUAL(cuMulticastCreate(&object, &wanted), CUDA_SUCCESS);
	return object;
}

static void what_is_bound_is_held_until_it_is_unbound(void)
{
	size_t before = free_bytes();
	CUmemGenericAllocationHandle object = team(2, 8 * MIB), memory = physical(0, 4 * MIB);

	EXPECT_EQUAL(cuMulticastAddDevice(object, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE);
	/* Before all of the team are there nothing is bound. */
	EXPECT_EQUAL(
		cuMulticastBindMem(object, 0, memory, 0, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMulticastAddDevice(object, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMulticastBindMem(object, 0, memory, 0, 4 * MIB, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMulticastBindMem(object, 2 * MIB, memory, 0, 2 * MIB, 0),
		CUDA_ERROR_INVALID_VALUE); /* over the first */
	EXPECT_EQUAL(cuMulticastBindMem(object, 8 * MIB, memory, 0, 2 * MIB, 0),
		CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMulticastBindMem_v2(object, 1, 4 * MIB, memory, 0, 2 * MIB, 0),
		CUDA_ERROR_INVALID_DEVICE);
	EXPECT_EQUAL(cuMemRelease(memory), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMulticastUnbind(object, 1, 0, 8 * MIB), CUDA_SUCCESS); /* the other card's */
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMulticastUnbind(object, 0, 0, 8 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemRelease(object), CUDA_SUCCESS);
}

static void an_address_is_bound_by_what_is_mapped_there_and_goes_with_the_object(void)
{
	size_t before = free_bytes();
	CUmemGenericAllocationHandle object = team(1, 8 * MIB), memory = physical(0, 4 * MIB);
	CUdeviceptr pointer;

	EXPECT_EQUAL(cuMulticastAddDevice(object, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAddressReserve(&pointer, 4 * MIB, 0, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemMap(pointer, 4 * MIB, 0, memory, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMulticastBindAddr(object, 0, pointer, 6 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuMulticastBindAddr(object, 0, pointer + 2 * MIB, 2 * MIB, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemRelease(memory), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemUnmap(pointer, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAddressFree(pointer, 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMemRelease(object), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void a_green_context_takes_memory_until_it_is_destroyed(void)
{
	CUdevResource whole, parts[3], rest;
	CUdevResourceDesc description;
	unsigned int count = 3;
	size_t before = free_bytes();
	CUcontext context, current;
	CUgreenCtx green;

	EXPECT_EQUAL(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
	EXPECT_EQUAL(whole.sm.smCount, 10);
	EXPECT_EQUAL(cuDevSmResourceSplitByCount(parts, &count, &whole, &rest, 0, 5), CUDA_SUCCESS);
	EXPECT_EQUAL(count, 1);
	EXPECT_EQUAL(parts[0].sm.smCount, 8);
	EXPECT_EQUAL(rest.sm.smCount, 2);
	EXPECT_EQUAL(cuDevResourceGenerateDesc(&description, parts, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGreenCtxCreate(&green, description, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
		CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 16 * MIB);
	EXPECT_EQUAL(cuGreenCtxGetDevResource(green, &rest, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
	EXPECT_EQUAL(rest.sm.smCount, 8);
	EXPECT_EQUAL(cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	EXPECT_EQUAL(launch_ns(NULL, 1000), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxPopCurrent_v2(&current), CUDA_SUCCESS);
	EXPECT(current == context);
	EXPECT_EQUAL(cuGreenCtxDestroy(green), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void a_green_context_that_does_not_fit_takes_nothing(void)
{
	CUdevResource whole;
	CUdevResourceDesc description;
	size_t before = free_bytes();
	CUdeviceptr filler;
	CUgreenCtx green;

	EXPECT_EQUAL(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDevResourceGenerateDesc(&description, &whole, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAlloc_v2(&filler, before - 14 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
		CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuMemFree_v2(filler), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void cards_reach_each_other_once_it_is_enabled(void)
{
	CUcontext peer;
	int can;

	EXPECT_EQUAL(cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(can, 1);
	EXPECT_EQUAL(cuDeviceCanAccessPeer(&can, 1, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(can, 0);
	EXPECT_EQUAL(cuDeviceGetP2PAttribute(&can, 2, 0, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(can, 1);
	EXPECT_EQUAL(cuDeviceGetP2PAttribute(&can, 3, 0, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(can, 0);
	EXPECT_EQUAL(cuDeviceGetP2PAttribute(&can, 2, 0, 0), CUDA_ERROR_INVALID_DEVICE);
	EXPECT_EQUAL(cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxDisablePeerAccess(peer), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	EXPECT_EQUAL(cuCtxEnablePeerAccess(peer, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxEnablePeerAccess(peer, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	EXPECT_EQUAL(cuCtxDisablePeerAccess(peer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxDisablePeerAccess(peer), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	EXPECT_EQUAL(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
}

void test_shallow(void)
{
	what_is_bound_is_held_until_it_is_unbound();
	an_address_is_bound_by_what_is_mapped_there_and_goes_with_the_object();
	a_green_context_takes_memory_until_it_is_destroyed();
	a_green_context_that_does_not_fit_takes_nothing();
	cards_reach_each_other_once_it_is_enabled();
}
