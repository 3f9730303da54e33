/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that the driver allocates. With one address space for both sides, the
 * device's pointer to it is the host's.
 */
#include "host.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096

static struct latch latch;
static struct host_range *ranges;

static struct host_range **find(uintptr_t address)
{
	struct host_range **link = &ranges;

	while (*link && address - (*link)->start >= (*link)->bytes)
		link = &(*link)->next;
	return link;
}

bool host_find(const void *address, struct host_range *result)
{
	struct host_range *range;

	latch_take(&latch);
	range = *find((uintptr_t)address);
	if (range)
		*result = *range;
	latch_drop(&latch);
	return range != NULL;
}

static CUresult add(void *start, size_t bytes, CUcontext context)
{
	struct host_range *range = malloc(sizeof(*range));

	REQUIRE(range, CUDA_ERROR_OUT_OF_MEMORY);
	latch_take(&latch);
	*range = (struct host_range){(uintptr_t)start, bytes, context, ranges};
	ranges = range;
	latch_drop(&latch);
	return CUDA_SUCCESS;
}

static CUresult drop(void *start)
{
	struct host_range **link, *range;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	latch_take(&latch);
	link = find((uintptr_t)start);
	range = *link;
	if (range && range->start == (uintptr_t)start) {
		*link = range->next;
		munmap(start, range->bytes);
		free(range);
		result = CUDA_SUCCESS;
	}
	latch_drop(&latch);
	return result;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
	size_t whole = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	void *mapped;
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && bytes > 0 && whole >= bytes && flags <= 7, CUDA_ERROR_INVALID_VALUE);
	mapped = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(mapped != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
	result = add(mapped, whole, context);
	if (result == CUDA_SUCCESS)
		*pointer = mapped;
	else
		munmap(mapped, whole);
	return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
	return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
	struct host_range range;

	REQUIRE_DRIVER();
	REQUIRE(host_find(pointer, &range), CUDA_ERROR_INVALID_VALUE);
	if (context_valid(range.context))
		context_drain(range.context); /* copies may still be in flight */
	return drop(pointer);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags)
{
	struct host_range range;

	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && flags == 0 && host_find(host, &range), CUDA_ERROR_INVALID_VALUE);
	*pointer = (CUdeviceptr)(uintptr_t)host;
	return CUDA_SUCCESS;
}
