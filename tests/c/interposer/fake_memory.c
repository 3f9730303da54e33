/* SPDX-License-Identifier: Apache-2.0
 *
 * Of the driver that only keeps books: memory that is shared, bound and sent about. An import has
 * always a handle of its own. Calls fail as fake_cuda.c's allocations do.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

/* fake_cuda.c's: what another thread does meanwhile. */
CUresult done(CUresult result);

static CUresult outcome(void)
{
	return getenv("FAKE_CUDA_FAIL") ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

static CUmemGenericAllocationHandle last_mapped;

static CUresult handle_new(CUmemGenericAllocationHandle *handle)
{
	CUdeviceptr address = 0;
	CUresult result = cuMemAlloc_v2(&address, 512);

	*handle = address;
	return result;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
	CUdeviceptr wanted, unsigned long long flags)
{
	(void)alignment, (void)wanted, (void)flags;
	return cuMemAlloc_v2(pointer, bytes);
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)pointer, (void)bytes, (void)offset, (void)flags;
	last_mapped = handle;
	return done(outcome());
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
	(void)pointer, (void)bytes;
	return done(outcome());
}

/* The handle that was mapped last, whatever the address. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
	(void)pointer;
	*handle = last_mapped;
	return done(outcome());
}

CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	(void)handle, (void)type, (void)flags;
	memset(exported, 0, sizeof(int));
	return outcome();
}

CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *exported, CUmemAllocationHandleType type)
{
	(void)exported, (void)type;
	return handle_new(handle);
}

/* FAKE_CUDA_LOCATION: of what kind every import is, as a number; a card's by default. */
CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
	const char *location = getenv("FAKE_CUDA_LOCATION");

	(void)handle;
	memset(properties, 0, sizeof(*properties));
	properties->location.type =
		location ? (CUmemLocationType)atoi(location) : CU_MEM_LOCATION_TYPE_DEVICE;
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
	(void)attribute, (void)pointer;
	memset(data, 0, sizeof(int)); /* the first device */
	return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(
	CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
	(void)properties;
	return handle_new(handle);
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
	(void)handle, (void)device;
	return outcome();
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags)
{
	(void)handle, (void)offset, (void)memory, (void)memory_offset, (void)bytes, (void)flags;
	return done(outcome());
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags)
{
	(void)device;
	return cuMulticastBindMem(handle, offset, memory, memory_offset, bytes, flags);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
	CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	(void)handle, (void)offset, (void)pointer, (void)bytes, (void)flags;
	return done(outcome());
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
	CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	(void)device;
	return cuMulticastBindAddr(handle, offset, pointer, bytes, flags);
}

CUresult cuMulticastUnbind(
	CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes)
{
	(void)handle, (void)device, (void)offset, (void)bytes;
	return done(outcome());
}

#define BATCH(symbol)                                                                              \
	CUresult symbol(CUdeviceptr *pointers, size_t *bytes, size_t count,                        \
		CUmemLocation *locations, size_t *starts, size_t location_count,                   \
		unsigned long long flags, CUstream stream)                                         \
	{                                                                                          \
		(void)pointers, (void)bytes, (void)count, (void)locations, (void)starts;           \
		(void)location_count, (void)flags, (void)stream;                                   \
		return outcome();                                                                  \
	}

BATCH(cuMemPrefetchBatchAsync)
BATCH(cuMemPrefetchBatchAsync_ptsz)
BATCH(cuMemDiscardAndPrefetchBatchAsync)
BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
