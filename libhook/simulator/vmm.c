/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management: addresses are reserved, memory is made, and the one is mapped into the
 * other. Memory is a memfd, so that two mappings show the same bytes and a descriptor can carry it
 * to another process; it is counted on the card by the process that made it, until the last handle
 * and the last mapping of it are gone.
 */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD_NAME "gpushare-sim-card"

struct physical {
	uint64_t kind;
	CUmemAllocationProp properties;
	size_t bytes;
	bool counted;
	int fd;
	unsigned int references; /* handles and mappings; under the space's latch */
};

struct mapping {
	size_t offset; /* in its reservation */
	size_t bytes;
	size_t physical_offset;
	struct physical *physical;
	CUmemAccess_flags access;
	struct mapping *next;
};

#define PHYSICAL_KIND UINT64_C(0x5048595349434131)

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *physical = (struct physical *)handle;

	return physical && physical->kind == PHYSICAL_KIND ? physical : NULL;
}

static struct sim_card *card_of(const struct physical *physical)
{
	return &device->cards[physical->properties.location.id];
}

/* With the latch held. */
static void physical_drop(struct physical *physical)
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

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
	CUdeviceptr wanted, unsigned long long flags)
{
	size_t units = alignment / UNIT_BYTES;
	struct region *region = NULL;

	(void)wanted; /* a hint */
	REQUIRE_DRIVER();
	REQUIRE(pointer && bytes > 0 && bytes % UNIT_BYTES == 0 && flags == 0 &&
			(alignment & (alignment - 1)) == 0,
		CUDA_ERROR_INVALID_VALUE);
	space_take();
	if (space_ready() && bytes / UNIT_BYTES < UINT32_MAX)
		region = region_new(REGION_RESERVED, (uint32_t)(bytes / UNIT_BYTES),
			units > 1 ? (uint32_t)units : 1);
	if (region) {
		region->bytes = bytes;
		*pointer = region->base;
	}
	space_drop();
	return region ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct region *reservation(CUdeviceptr pointer, size_t bytes)
{
	struct region *region = region_at(pointer);

	return region && region->kind == REGION_RESERVED && bytes > 0 &&
			       bytes <= region->bytes - (pointer - region->base)
		       ? region
		       : NULL;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
	struct region *region;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	REQUIRE_DRIVER();
	space_take();
	region = reservation(pointer, bytes);
	if (region && region->base == pointer && region->bytes == bytes && !region->mappings) {
		region->written = false; /* contents went with the mappings */
		region_free(region);
		result = CUDA_SUCCESS;
	}
	space_drop();
	return result;
}

/* The mapping that [pointer, pointer + bytes) lies in; of two neighbours, the first. */
static struct mapping *mapping_at(struct region *region, CUdeviceptr pointer)
{
	size_t offset = pointer - region->base;

	for (struct mapping *mapping = region->mappings; mapping; mapping = mapping->next) {
		if (offset >= mapping->offset && offset - mapping->offset < mapping->bytes)
			return mapping;
	}
	return NULL;
}

void *mapping_contents(struct region *region, CUdeviceptr pointer, size_t bytes)
{
	CUdeviceptr at = pointer;

	while (at - pointer < bytes) {
		struct mapping *mapping = mapping_at(region, at);

		if (!mapping || mapping->access == CU_MEM_ACCESS_FLAGS_PROT_NONE)
			return NULL;
		at = region->base + mapping->offset + mapping->bytes;
	}
	return (void *)(pointer + space_shadow());
}

static bool overlaps(struct region *region, size_t offset, size_t bytes)
{
	for (struct mapping *mapping = region->mappings; mapping; mapping = mapping->next) {
		if (offset < mapping->offset + mapping->bytes && mapping->offset < offset + bytes)
			return true;
	}
	return false;
}

static CUresult map(CUdeviceptr pointer, size_t bytes, size_t offset, struct physical *physical)
{
	struct region *region = reservation(pointer, bytes);
	struct mapping *mapping;

	REQUIRE(region && !overlaps(region, pointer - region->base, bytes),
		CUDA_ERROR_INVALID_VALUE);
	mapping = malloc(sizeof(*mapping));
	REQUIRE(mapping, CUDA_ERROR_OUT_OF_MEMORY);
	if (mmap((void *)(pointer + space_shadow()), bytes, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->fd,
		    (off_t)offset) == MAP_FAILED) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*mapping = (struct mapping){pointer - region->base, bytes, offset, physical,
		CU_MEM_ACCESS_FLAGS_PROT_NONE, region->mappings};
	region->mappings = mapping;
	physical->references++;
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct physical *physical;
	CUresult result;

	REQUIRE_DRIVER();
	physical = physical_of(handle);
	REQUIRE(physical && flags == 0 && bytes > 0 && bytes % UNIT_BYTES == 0 &&
			pointer % UNIT_BYTES == 0 && offset % UNIT_BYTES == 0 &&
			offset <= physical->bytes && bytes <= physical->bytes - offset,
		CUDA_ERROR_INVALID_VALUE);
	space_take();
	result = map(pointer, bytes, offset, physical);
	space_drop();
	return result;
}

/* Mappings go as they came, whole: part of one cannot be unmapped. */
static CUresult unmap(CUdeviceptr pointer, size_t bytes)
{
	struct region *region = reservation(pointer, bytes);
	size_t first, found = 0;

	REQUIRE(region, CUDA_ERROR_INVALID_VALUE);
	first = pointer - region->base;
	for (struct mapping *mapping = region->mappings; mapping; mapping = mapping->next) {
		if (mapping->offset >= first && mapping->offset + mapping->bytes <= first + bytes)
			found += mapping->bytes;
	}
	REQUIRE(found == bytes, CUDA_ERROR_INVALID_VALUE);
	for (struct mapping **link = &region->mappings; *link;) {
		struct mapping *mapping = *link;

		if (mapping->offset < first || mapping->offset >= first + bytes) {
			link = &mapping->next;
			continue;
		}
		*link = mapping->next;
		physical_drop(mapping->physical);
		free(mapping);
	}
	mmap((void *)(pointer + space_shadow()), bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
	CUresult result;

	REQUIRE_DRIVER();
	space_take();
	result = unmap(pointer, bytes);
	space_drop();
	return result;
}

CUresult cuMemSetAccess(
	CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	struct region *region;
	bool found = false;

	REQUIRE_DRIVER();
	REQUIRE(access && count > 0, CUDA_ERROR_INVALID_VALUE);
	space_take();
	region = reservation(pointer, bytes);
	for (struct mapping *mapping = region ? region->mappings : NULL; mapping;
		mapping = mapping->next) {
		CUdeviceptr start = region->base + mapping->offset;

		if (start < pointer || start + mapping->bytes > pointer + bytes)
			continue;
		for (size_t i = 0; i < count; i++) {
			if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
				mapping->access = access[i].flags;
		}
		found = true;
	}
	space_drop();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(
	unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
	struct region *region;
	struct mapping *mapping;

	REQUIRE_DRIVER();
	REQUIRE(flags && location, CUDA_ERROR_INVALID_VALUE);
	space_take();
	region = reservation(pointer, 1);
	mapping = region ? mapping_at(region, pointer) : NULL;
	if (mapping)
		*flags = (unsigned long long)mapping->access;
	space_drop();
	return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
	struct region *region;
	struct mapping *mapping;

	REQUIRE_DRIVER();
	REQUIRE(handle, CUDA_ERROR_INVALID_VALUE);
	space_take();
	region = reservation((CUdeviceptr)(uintptr_t)pointer, 1);
	mapping = region ? mapping_at(region, (CUdeviceptr)(uintptr_t)pointer) : NULL;
	if (mapping) {
		mapping->physical->references++;
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)mapping->physical;
	}
	space_drop();
	return mapping ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
