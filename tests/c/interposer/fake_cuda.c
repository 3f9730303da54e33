/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver that only keeps books, for what the simulator cannot be: newer than the table, older
 * than it, or failing on demand. Two devices; "memory" is address space that is never touched.
 *
 * FAKE_CUDA_FAIL=1    every allocation fails with CUDA_ERROR_LAUNCH_FAILED
 * FAKE_CUDA_INIT      the result of cuInit, as a number
 * FAKE_CUDA_DEVICES   uuid numbers in the order in which they are visible, e.g. "10"
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

#define EXPORT __attribute__((visibility("default")))
#define FUTURE 99000

static __thread CUcontext current;
static _Atomic uint64_t next_address = UINT64_C(0x7f0000000200);
static _Atomic int primary_users[2];

/* What another thread does when the driver has just done what it was asked for, or is about to look
 * at it: once. */
EXPORT void (*fake_meanwhile)(void);
void (*fake_meanwhile)(void);

CUresult done(CUresult result);
CUresult done(CUresult result)
{
	void (*meanwhile)(void) = fake_meanwhile;

	fake_meanwhile = NULL;
	if (meanwhile)
		meanwhile();
	return result;
}

static const char *devices(void)
{
	const char *order = getenv("FAKE_CUDA_DEVICES");
	return order ? order : "01";
}

static CUcontext context_of(CUdevice device)
{
	static char contexts[2];
	return (CUcontext)(void *)&contexts[device];
}

static CUdevice device_of(CUcontext context)
{
	return context == context_of(0) ? 0 : 1;
}

static CUresult allocate(uint64_t *address, uint64_t bytes)
{
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (getenv("FAKE_CUDA_FAIL"))
		return CUDA_ERROR_LAUNCH_FAILED;
	*address = atomic_fetch_add(&next_address, (bytes + 511) / 512 * 512);
	return CUDA_SUCCESS;
}

static CUresult release(uint64_t address)
{
	if (address < UINT64_C(0x7f0000000000) || address >= atomic_load(&next_address))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	const char *result = getenv("FAKE_CUDA_INIT");

	if (result)
		return (CUresult)atoi(result);
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = (int)strlen(devices());
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

/* An older driver: there is no cuDeviceGetUuid_v2. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	memset(uuid, 0, sizeof(*uuid));
	uuid->bytes[15] = (char)(devices()[device] - '0' + 1);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	(void)device;
	*bytes = (size_t)1 << 40;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = *total_bytes = (size_t)1 << 40;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	(void)flags;
	*context = current = context_of(device);
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	if (context == current)
		current = NULL;
	return done(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = current;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	current = context;
	return CUDA_SUCCESS;
}

/* Nothing ever runs. */
CUresult cuCtxSynchronize(void)
{
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = device_of(current);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	atomic_fetch_add(&primary_users[device], 1);
	*context = context_of(device);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	atomic_fetch_sub(&primary_users[device], 1);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	atomic_store(&primary_users[device], 0);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = atomic_load(&primary_users[device]) > 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	uint64_t address;
	CUresult result = allocate(&address, bytes);
	if (result == CUDA_SUCCESS)
		*pointer = address;
	return done(result);
}

/* The interface with addresses of 32 bits. */
CUresult cuMemAlloc(unsigned int *pointer, unsigned int bytes)
{
	CUdeviceptr address = 0;
	CUresult result = cuMemAlloc_v2(&address, bytes);

	*pointer = (unsigned int)address;
	return result;
}

CUresult cuMemAllocPitch(unsigned int *pointer, unsigned int *pitch, unsigned int width_bytes,
	unsigned int height, unsigned int element_bytes)
{
	(void)element_bytes;
	*pitch = (width_bytes + 4095) / 4096 * 4096;
	return cuMemAlloc(pointer, *pitch * height);
}

CUresult cuMemFree(unsigned int pointer)
{
	(void)pointer;
	return CUDA_SUCCESS;
}

/* Its pitch is coarser than anyone would guess. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height,
	unsigned int element_bytes)
{
	(void)element_bytes;
	*pitch = (width_bytes + 4095) / 4096 * 4096;
	return cuMemAlloc_v2(pointer, *pitch * height);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
	(void)flags;
	return cuMemAlloc_v2(pointer, bytes);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	(void)stream;
	*context = current;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	return release(pointer);
}

/* Of what was created last. */
EXPORT int fake_location;
int fake_location;

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags)
{
	(void)flags;
	uint64_t address;
	done(CUDA_SUCCESS);
	fake_location = properties ? properties->location.type : CU_MEM_LOCATION_TYPE_INVALID;
	CUresult result = properties ? allocate(&address, bytes) : CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*handle = address;
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	return release(handle);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
	unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
	(void)function, (void)stream, (void)parameters, (void)extra;
	/* Arguments in registers and on the stack must have come through. */
	return grid_x == 1 && grid_y == 2 && grid_z == 3 && block_x == 4 && block_y == 5 &&
			       block_z == 6 && shared_bytes == 7
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

/* Of a driver newer than the table. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	(void)device;
	*value = (int)attribute; /* it can do everything */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuTomorrow(int *value);
CUresult cuTomorrow(int *value)
{
	*value = 42;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v3(CUdeviceptr *pointer, size_t bytes, size_t more);
CUresult cuMemAlloc_v3(CUdeviceptr *pointer, size_t bytes, size_t more)
{
	return cuMemAlloc_v2(pointer, bytes + more);
}

static const struct line {
	const char *symbol, *name;
	int version;
	bool per_thread;
} lines[] = {
#define NONE false
#define LEGACY false
#define PER_THREAD true
#define CUDA_SYMBOL(symbol, name, version, stream) {#symbol, #name, version, stream},
#include "../../../libhook/table/cuda.inc"
#undef CUDA_SYMBOL
	{"cuTomorrow", "cuTomorrow", FUTURE, false},
	{"cuMemAlloc_v3", "cuMemAlloc", FUTURE, false},
	/* A driver might answer to exported names as well; no header says that it does not. */
	{"cuMemAlloc_v2", "cuMemAlloc_v2", 3020, false},
};

/* Only what this library defines itself: the filter before it exports everything. */
static void *own(const char *symbol)
{
	Dl_info place, found;
	void *library, *address;

	dladdr((void *)lines, &place);
	library = dlopen(place.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
	address = library ? dlsym(library, symbol) : NULL;
	if (address && dladdr(address, &found) && found.dli_fbase == place.dli_fbase)
		return address;
	return NULL;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
	CUdriverProcAddressQueryResult *status)
{
	void *legacy = NULL, *per_thread = NULL;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (strcmp(lines[i].name, symbol) != 0 || lines[i].version > version)
			continue;
		void *address = own(lines[i].symbol);
		if (address && lines[i].per_thread)
			per_thread = address;
		else if (address)
			legacy = address;
	}
	*function = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && per_thread ? per_thread
											: legacy;
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
				    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	void *found = NULL;

	cuGetProcAddress_v2(symbol, &found, version, flags, NULL);
	if (!found)
		return CUDA_ERROR_NOT_FOUND;
	*function = found;
	return CUDA_SUCCESS;
}
