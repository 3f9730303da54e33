/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes of pointers.
 */
#include "host.h"
#include "memory.h"

#include <string.h>

/* The attributes of one address, of either side. */
struct facts {
	CUmemorytype type;
	CUcontext context;
	CUdevice ordinal;
	CUdeviceptr base;
	size_t bytes;
	unsigned long long id;
	bool managed;
	bool ipc_capable;
	CUmemoryPool pool;
};

static bool learn(CUdeviceptr pointer, struct facts *facts)
{
	struct host_range range;
	struct extent extent;

	if (memory_find(pointer, &extent)) {
		struct region *region = extent.region;

		*facts = (struct facts){.type = region->kind == REGION_HOST ? CU_MEMORYTYPE_HOST
									    : CU_MEMORYTYPE_DEVICE,
			.context = region->context,
			.ordinal = region->context ? region->context->device : 0,
			.base = extent.base,
			.bytes = extent.bytes,
			/* Of allocations that share a region, each has its own number. */
			.id = region->id * GRANULES + (extent.base - region->base) / GRANULE_BYTES,
			.managed = region->kind == REGION_MANAGED,
			.ipc_capable =
				region->kind == REGION_WHOLE || region->kind == REGION_SHARED,
			.pool = region->pool};
		return true;
	}
	if (host_find((const void *)(uintptr_t)pointer, &range)) {
		*facts = (struct facts){.type = CU_MEMORYTYPE_HOST,
			.context = range.context,
			.ordinal = range.context->device,
			.base = range.start,
			.bytes = range.bytes,
			.id = range.start};
		return true;
	}
	return false;
}

#define GIVE(type, value)                                                                          \
	do {                                                                                       \
		type given_ = (type)(value);                                                       \
		memcpy(data, &given_, sizeof(given_));                                             \
		return CUDA_SUCCESS;                                                               \
	} while (0)

static CUresult attribute_get(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
	bool host_visible;
	struct facts facts;

	REQUIRE(data, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(learn(pointer, &facts), CUDA_ERROR_INVALID_VALUE);
	host_visible = facts.type == CU_MEMORYTYPE_HOST || facts.managed;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		GIVE(CUcontext, facts.context);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		GIVE(unsigned int, facts.type);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		GIVE(CUdeviceptr, pointer);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		REQUIRE(host_visible, CUDA_ERROR_INVALID_VALUE);
		GIVE(void *, (uintptr_t)pointer);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		GIVE(int, 0);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		GIVE(unsigned long long, facts.id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		GIVE(int, facts.managed);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		GIVE(int, facts.ordinal);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		GIVE(int, facts.ipc_capable);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		GIVE(CUdeviceptr, facts.base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		GIVE(size_t, facts.bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		GIVE(int, 1);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		GIVE(unsigned long long, 0);
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		GIVE(int, 0);
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		GIVE(unsigned int, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		GIVE(CUmemoryPool, facts.pool);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
	REQUIRE_DRIVER();
	return attribute_get(data, attribute, pointer);
}
