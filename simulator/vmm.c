/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management: addresses are reserved, memory (physical.c) is mapped into them, and
 * access is granted.
 */
#include "memory.h"
#include "physical.h"

#include <stdlib.h>
#include <sys/mman.h>

struct mapping {
	size_t offset; /* in its reservation */
	size_t bytes;
	size_t physical_offset;
	struct physical *physical;
	CUmemAccess_flags access;
	struct mapping *next;
};

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
		region->written = false; /* the contents were unmapped with the mappings */
		region_free(region);
		result = CUDA_SUCCESS;
	}
	space_drop();
	return result;
}

/* The mapping that contains [pointer, pointer + bytes); of two neighbours, the first. */
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

static bool show(uint64_t pointer, size_t bytes, const struct physical *physical, size_t offset)
{
	return mmap((void *)(pointer + space_shadow()), bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->fd,
		       (off_t)offset) != MAP_FAILED;
}

static void show_in(struct region *region, void *data)
{
	const struct physical *physical = data;

	for (struct mapping *mapping = region->mappings; mapping; mapping = mapping->next)
		if (mapping->physical == physical)
			show(region->base + mapping->offset, mapping->bytes, physical,
				mapping->physical_offset);
}

void mappings_show(struct physical *physical)
{
	regions_visit(show_in, physical);
}

static CUresult map(CUdeviceptr pointer, size_t bytes, size_t offset, struct physical *physical)
{
	struct region *region = reservation(pointer, bytes);
	struct mapping *mapping;

	REQUIRE(region && !overlaps(region, pointer - region->base, bytes),
		CUDA_ERROR_INVALID_VALUE);
	mapping = malloc(sizeof(*mapping));
	REQUIRE(mapping, CUDA_ERROR_OUT_OF_MEMORY);
	if (!show(pointer, bytes, physical, offset)) {
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

/* Mappings are removed whole, as they were made: part of one cannot be unmapped. */
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

struct physical *mapped_at(CUdeviceptr pointer, size_t bytes, size_t *offset)
{
	struct region *region = reservation(pointer, bytes);
	struct mapping *mapping = region ? mapping_at(region, pointer) : NULL;
	size_t within = mapping ? pointer - region->base - mapping->offset : 0;

	if (!mapping || bytes > mapping->bytes - within)
		return NULL;
	*offset = mapping->physical_offset + within;
	return mapping->physical;
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
