/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools between processes. The memory of an exportable pool is a memfd; a descriptor carries it to
 * another process, which maps the allocations whose pointers it receives. They stay on the account
 * of the process that created them.
 */
#include "pool.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD_NAME "gpushare-sim-pool"
#define POINTER_MAGIC UINT64_C(0x504f4f4c50545231)

/* The contents of CUmemPoolPtrExportData. */
struct exported_pointer {
	uint64_t magic;
	uint64_t offset; /* in the pool's file */
	uint64_t bytes;
};

_Static_assert(sizeof(struct exported_pointer) <= sizeof(CUmemPoolPtrExportData), "it fits");

bool pool_make_shareable(CUmemoryPool pool)
{
	char name[64];

	snprintf(name, sizeof(name), FD_NAME "-%d-%d", (int)pool->location.type, pool->location.id);
	pool->fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
	return pool->fd >= 0;
}

CUresult cuMemPoolExportToShareableHandle(
	void *exported, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)
{
	int fd;

	REQUIRE_DRIVER();
	REQUIRE(exported && pool_valid(pool) && flags == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(pool->handle_types & type && !pool->imported, CUDA_ERROR_INVALID_VALUE);
	fd = dup(pool->fd);
	REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(exported, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

/* The location of the pool in a descriptor: the memfd's name contains it. */
static bool location_of_file(int fd, CUmemLocation *location)
{
	char link[64], name[64] = "";
	int type;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, name, sizeof(name) - 1) <= 0 ||
		sscanf(name, "/memfd:" FD_NAME "-%d-%d", &type, &location->id) != 2)
		return false;
	location->type = (CUmemLocationType)type;
	return type != CU_MEM_LOCATION_TYPE_DEVICE || device_valid(location->id);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *exported,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	int fd = (int)(intptr_t)exported;
	CUmemLocation location;
	CUmemoryPool made;

	REQUIRE_DRIVER();
	REQUIRE(pool && flags == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(location_of_file(fd, &location), CUDA_ERROR_INVALID_VALUE);
	fd = dup(fd);
	REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
	made = pool_new(location, type);
	if (!made) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	made->imported = true;
	made->fd = fd;
	*pool = made;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *exported, CUdeviceptr pointer)
{
	struct exported_pointer data = {.magic = POINTER_MAGIC};
	struct extent extent;
	CUmemoryPool pool;

	REQUIRE_DRIVER();
	REQUIRE(exported, CUDA_ERROR_INVALID_VALUE);
	latch_take(&pools_latch);
	pool = memory_find(pointer, &extent) ? extent.region->pool : NULL;
	if (pool && pool->fd >= 0 && !pool->imported) {
		data.offset =
			extent.region->chunk->file_offset + (extent.base - extent.region->base);
		data.bytes = extent.bytes;
	}
	latch_drop(&pools_latch);
	REQUIRE(data.bytes > 0, CUDA_ERROR_INVALID_VALUE);
	memset(exported, 0, sizeof(*exported));
	memcpy(exported, &data, sizeof(data));
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(
	CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *exported)
{
	struct exported_pointer data;
	struct stat file;
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && exported && pool_valid(pool) && pool->imported,
		CUDA_ERROR_INVALID_VALUE);
	memcpy(&data, exported, sizeof(data));
	REQUIRE(data.magic == POINTER_MAGIC && data.offset % (uint64_t)sysconf(_SC_PAGESIZE) == 0 &&
			fstat(pool->fd, &file) == 0 && data.bytes > 0 &&
			data.offset < (uint64_t)file.st_size &&
			data.bytes <= (uint64_t)file.st_size - data.offset,
		CUDA_ERROR_INVALID_VALUE);
	latch_take(&pools_latch);
	result = pool_map(pool, context, data.offset, data.bytes, pointer);
	latch_drop(&pools_latch);
	return result;
}
