/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory without addresses: cuMemCreate. It is a memfd, so that two mappings show the same bytes
 * and a descriptor can carry it to another process; it is counted on the card by the process that
 * made it, until the last handle and the last mapping of it are gone.
 */
#include "physical.h"

#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD_NAME "gpushare-sim-card"
#define PHYSICAL_KIND UINT64_C(0x5048595349434131)

struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *physical = (struct physical *)handle;

	return physical && physical->kind == PHYSICAL_KIND ? physical : NULL;
}

static struct sim_card *card_of(const struct physical *physical)
{
	return &device->cards[physical->properties.location.id];
}

void physical_drop(struct physical *physical)
{
	if (--physical->references > 0)
		return;
	close(physical->fd);
	if (physical->counted) {
		card_lock(card_of(physical));
		card_release(card_of(physical), physical->bytes);
		card_unlock(card_of(physical));
	}
	physical->kind = 0;
	free(physical);
}

static CUresult properties_check(const CUmemAllocationProp *properties)
{
	REQUIRE(properties && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(device_valid(properties->location.id), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(properties->requestedHandleTypes <= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		CUDA_ERROR_NOT_SUPPORTED);
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
	CUmemAllocationGranularity_flags option)
{
	CUresult result;

	(void)option;
	REQUIRE_DRIVER();
	result = properties_check(properties);
	REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
	if (result == CUDA_SUCCESS)
		*bytes = UNIT_BYTES;
	return result;
}

static struct physical *physical_new(const CUmemAllocationProp *properties, size_t bytes, int fd)
{
	struct physical *physical = calloc(1, sizeof(*physical));

	if (!physical)
		return NULL;
	*physical = (struct physical){.kind = PHYSICAL_KIND,
		.properties = *properties,
		.bytes = bytes,
		.fd = fd,
		.references = 1};
	return physical;
}

static int memory_file(CUdevice ordinal, size_t bytes)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), FD_NAME "%d", ordinal);
	fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC); /* glibc 2.27 has a function */
	if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct physical *physical;
	CUresult result;
	bool fits;
	int fd;

	REQUIRE_DRIVER();
	REQUIRE(handle && bytes > 0 && bytes % UNIT_BYTES == 0 && flags == 0,
		CUDA_ERROR_INVALID_VALUE);
	result = properties_check(properties);
	if (result != CUDA_SUCCESS)
		return result;
	fd = memory_file(properties->location.id, bytes);
	REQUIRE(fd >= 0, CUDA_ERROR_OUT_OF_MEMORY);
	physical = physical_new(properties, bytes, fd);
	if (!physical) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	card_lock(card_of(physical));
	fits = card_reserve(card_of(physical), bytes);
	card_unlock(card_of(physical));
	physical->counted = fits;
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	if (!fits)
		physical_drop(physical);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	REQUIRE_DRIVER();
	REQUIRE(physical_of(handle), CUDA_ERROR_INVALID_VALUE);
	space_take();
	physical_drop(physical_of(handle));
	space_drop();
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
	REQUIRE_DRIVER();
	REQUIRE(properties && physical_of(handle), CUDA_ERROR_INVALID_VALUE);
	*properties = physical_of(handle)->properties;
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	struct physical *physical;
	int fd;

	REQUIRE_DRIVER();
	physical = physical_of(handle);
	REQUIRE(exported && physical && flags == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(physical->properties.requestedHandleTypes & type, CUDA_ERROR_INVALID_VALUE);
	fd = dup(physical->fd);
	REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(exported, &fd, sizeof(fd));
	return CUDA_SUCCESS;
}

/* Which card's memory a descriptor carries: the memfd's name tells. -1 for another file. */
static CUdevice card_of_file(int fd)
{
	char link[64], name[64] = "";
	CUdevice ordinal;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (readlink(link, name, sizeof(name) - 1) <= 0 ||
		sscanf(name, "/memfd:" FD_NAME "%d", &ordinal) != 1 || !device_valid(ordinal))
		return -1;
	return ordinal;
}

/* Imported memory stays on the account of who made it. */
CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *exported, CUmemAllocationHandleType type)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	int fd = (int)(intptr_t)exported;
	struct physical *physical;
	struct stat file;

	REQUIRE_DRIVER();
	REQUIRE(handle, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	properties.location.id = card_of_file(fd);
	REQUIRE(properties.location.id >= 0 && fstat(fd, &file) == 0, CUDA_ERROR_INVALID_VALUE);
	fd = dup(fd);
	REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
	physical = physical_new(&properties, (size_t)file.st_size, fd);
	if (!physical)
		close(fd);
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	return physical ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
