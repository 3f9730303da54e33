/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that reaches the driver in the way that its first argument names, and prints
 * "TOTAL FREE RESULT LEFT": the card's memory as it sees it, what allocating all of it and one MiB
 * more answers, and what is free when it has allocated and freed half.
 */
#include <stdio.h>

#include "cuda_driver.h"
#include "lookups.h"

static struct {
	__typeof__(&cuInit) init;
	__typeof__(&cuCtxCreate_v2) context_create;
	__typeof__(&cuMemGetInfo_v2) memory;
	__typeof__(&cuMemAlloc_v2) allocate;
	__typeof__(&cuMemFree_v2) release;
	__typeof__(&cuMemAllocAsync) allocate_async;
} driver;

static void reach(finder *find)
{
	FIND(&driver.init, find, cuInit);
	FIND(&driver.context_create, find, cuCtxCreate_v2);
	FIND(&driver.memory, find, cuMemGetInfo_v2);
	FIND(&driver.allocate, find, cuMemAlloc_v2);
	FIND(&driver.release, find, cuMemFree_v2);
	FIND(&driver.allocate_async, find, cuMemAllocAsync);
}

static int over_quota(size_t bytes)
{
	CUdeviceptr pointer;
	CUresult result = driver.allocate_async(&pointer, bytes, NULL);

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return (int)result;
	return (int)driver.allocate(&pointer, bytes);
}

int main(int count, char **arguments)
{
	CUcontext context;
	CUdeviceptr pointer;
	size_t total, free_bytes, left;

	if (count != 2)
		return 2;
	reach(lookup_named(arguments[1]));
	int result = (int)driver.init(0);
	if (result != CUDA_SUCCESS) {
		printf("init %d\n", result);
		return 1;
	}
	if (driver.context_create(&context, 0, 0) != CUDA_SUCCESS)
		return 3;
	if (driver.memory(&free_bytes, &total) != CUDA_SUCCESS)
		return 4;
	result = over_quota(free_bytes + (1 << 20));
	if (driver.allocate(&pointer, free_bytes / 2) != CUDA_SUCCESS ||
		driver.release(pointer) != CUDA_SUCCESS)
		return 5;
	driver.memory(&left, &total);
	printf("%zu %zu %d %zu\n", total, free_bytes, result, left);
	return 0;
}
