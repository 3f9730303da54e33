/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast objects, as far as memory is concerned: a bind holds the physical memory that is bound.
 * An object has no bytes of its own, cannot be mapped and cannot be exported.
 */
#include "multicast.h"

#include <stdlib.h>

#define MULTICAST_KIND UINT64_C(0x4d554c5449434131)
#define MULTICAST_MAJOR 9 /* the first compute capability that has it */

struct bind {
	struct physical *physical;
	size_t offset, bytes;
	struct bind *next;
};

struct multicast {
	uint64_t kind;
	CUmulticastObjectProp properties;
	bool added[SIM_CARDS]; /* by ordinal */
	unsigned int added_count;
	struct bind *binds;
};

static struct multicast *multicast_of(CUmemGenericAllocationHandle handle)
{
	struct multicast *object = (struct multicast *)handle;

	return object && object->kind == MULTICAST_KIND ? object : NULL;
}

static CUresult properties_check(const CUmulticastObjectProp *properties)
{
	REQUIRE(properties && properties->numDevices > 0 && properties->flags == 0,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(properties->numDevices <= device_count(), CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(
	size_t *bytes, const CUmulticastObjectProp *properties, int option)
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

CUresult cuMulticastCreate(
	CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
	struct multicast *object;
	CUresult result;

	REQUIRE_DRIVER();
	result = properties_check(properties);
	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE(handle && properties->size > 0 && properties->size % UNIT_BYTES == 0,
		CUDA_ERROR_INVALID_VALUE);
	object = calloc(1, sizeof(*object));
	REQUIRE(object, CUDA_ERROR_OUT_OF_MEMORY);
	object->kind = MULTICAST_KIND;
	object->properties = *properties;
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)object;
	return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	struct multicast *object;
	bool fits;

	REQUIRE_DRIVER();
	object = multicast_of(handle);
	REQUIRE(object, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(card_profile(device_card(ordinal))->compute_major >= MULTICAST_MAJOR,
		CUDA_ERROR_NOT_SUPPORTED);
	space_take();
	fits = !object->added[ordinal] && object->added_count < object->properties.numDevices;
	if (fits) {
		object->added[ordinal] = true;
		object->added_count++;
	}
	space_drop();
	return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool overlaps(const struct multicast *object, const struct physical *physical, size_t offset,
	size_t bytes)
{
	for (const struct bind *bind = object->binds; bind; bind = bind->next) {
		if (bind->physical->card == physical->card && offset < bind->offset + bind->bytes &&
			bind->offset < offset + bytes)
			return true;
	}
	return false;
}

/* With the latch held. `ordinal` is the device that the caller names, -1: the memory's. */
static CUresult bind_physical(struct multicast *object, CUdevice ordinal, size_t offset,
	struct physical *physical, size_t physical_offset, size_t bytes)
{
	struct bind *bind;
	CUdevice own;

	REQUIRE(physical && physical->card, CUDA_ERROR_INVALID_VALUE);
	own = device_ordinal(physical->card);
	REQUIRE(ordinal < 0 || ordinal == own, CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(own >= 0 && object->added[own] &&
			object->added_count == object->properties.numDevices,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(bytes > 0 && (bytes | offset | physical_offset) % UNIT_BYTES == 0 &&
			offset <= object->properties.size &&
			bytes <= object->properties.size - offset &&
			physical_offset <= physical->bytes &&
			bytes <= physical->bytes - physical_offset,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(!overlaps(object, physical, offset, bytes), CUDA_ERROR_INVALID_VALUE);
	bind = malloc(sizeof(*bind));
	REQUIRE(bind, CUDA_ERROR_OUT_OF_MEMORY);
	*bind = (struct bind){physical, offset, bytes, object->binds};
	object->binds = bind;
	physical->references++;
	return CUDA_SUCCESS;
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags)
{
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(multicast_of(handle) && flags == 0, CUDA_ERROR_INVALID_VALUE);
	space_take();
	result = bind_physical(
		multicast_of(handle), ordinal, offset, physical_of(memory), memory_offset, bytes);
	space_drop();
	return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags)
{
	return bind_memory(handle, -1, offset, memory, memory_offset, bytes, flags);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
	unsigned long long flags)
{
	REQUIRE(ordinal >= 0, CUDA_ERROR_INVALID_DEVICE);
	return bind_memory(handle, ordinal, offset, memory, memory_offset, bytes, flags);
}

/* The memory that is mapped at an address, whole within one mapping. */
static CUresult bind_address(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
	CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	struct physical *physical;
	size_t physical_offset;
	CUresult result;

	REQUIRE_DRIVER();
	REQUIRE(multicast_of(handle) && flags == 0, CUDA_ERROR_INVALID_VALUE);
	space_take();
	physical = mapped_at(pointer, bytes, &physical_offset);
	result = bind_physical(
		multicast_of(handle), ordinal, offset, physical, physical_offset, bytes);
	space_drop();
	return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
	CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	return bind_address(handle, -1, offset, pointer, bytes, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice ordinal,
	size_t offset, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	REQUIRE(ordinal >= 0, CUDA_ERROR_INVALID_DEVICE);
	return bind_address(handle, ordinal, offset, pointer, bytes, flags);
}

/* Remove the binds of a card within a range; of any card if it is null. */
static void drop_binds(
	struct multicast *object, const struct sim_card *card, size_t offset, size_t bytes)
{
	for (struct bind **link = &object->binds; *link;) {
		struct bind *bind = *link;

		if ((card && bind->physical->card != card) || bind->offset < offset ||
			bind->offset - offset >= bytes) {
			link = &bind->next;
			continue;
		}
		*link = bind->next;
		physical_drop(bind->physical);
		free(bind);
	}
}

CUresult cuMulticastUnbind(
	CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset, size_t bytes)
{
	REQUIRE_DRIVER();
	REQUIRE(multicast_of(handle) && bytes > 0 && (offset | bytes) % UNIT_BYTES == 0,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	space_take();
	drop_binds(multicast_of(handle), device_card(ordinal), offset, bytes);
	space_drop();
	return CUDA_SUCCESS;
}

bool multicast_release(CUmemGenericAllocationHandle handle)
{
	struct multicast *object = multicast_of(handle);

	if (!object)
		return false;
	drop_binds(object, NULL, 0, SIZE_MAX);
	object->kind = 0;
	free(object);
	return true;
}
