/* SPDX-License-Identifier: Apache-2.0 */
#include "multicast.h"

#include "cards.h"
#include "physical_refs.h"

/* By object, card and offset, mixed into one number: an unbind must name the same three as its
 * bind. The owner is the piece that is bound, `bytes` the object's number, `references` the number
 * of the bind, in order. */
static struct allocations binds;
static uint32_t last_bind;

static uint64_t mixed(uint64_t number)
{
	number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
	return number ^ number >> 31;
}

static uint64_t bind_key(uint64_t object, unsigned card, size_t offset)
{
	return mixed(mixed(object * GPUSHARE_MAX_CARDS + card) + offset) | 1;
}

/* Holds the object and the memory to be bound: other threads may release them while the driver
 * binds. 0 if it is not recorded. */
struct bind {
	uint64_t object;
	uint64_t piece;
};

static struct bind bind_memory(
	CUmemGenericAllocationHandle handle, CUmemGenericAllocationHandle memory)
{
	physical_refs_lock();
	struct bind bind = {physical_of_handle(handle), physical_of_handle(memory)};
	physical_hold(bind.object);
	physical_hold(bind.piece);
	physical_refs_unlock();
	return bind;
}

static struct bind bind_address(CUmemGenericAllocationHandle handle, CUdeviceptr pointer)
{
	physical_refs_lock();
	struct bind bind = {physical_of_handle(handle), physical_hold_mapped(pointer)};
	physical_hold(bind.object);
	physical_refs_unlock();
	return bind;
}

/* The reference to the piece belongs to the bind from now on. */
static void bound(const struct bind *bind, unsigned card, size_t offset)
{
	const uint64_t key = bind_key(bind->object, card, offset);
	const struct allocation entry = {.handle = key,
		.bytes = bind->object,
		.owner = bind->piece,
		.references = ++last_bind};
	struct allocation stale;

	physical_is_multicast(bind->object);
	/* It was unbound as part of a larger range, or the driver would not have bound this. */
	if (allocations_take(&binds, key, &stale))
		physical_drop(stale.owner);
	physical_put(&binds, &entry);
}

static CUresult bind_settle(
	const struct bind *bind, CUresult result, CUdevice device, size_t offset)
{
	unsigned card;
	const bool known = result == CUDA_SUCCESS && bind->object && bind->piece &&
			   card_of_device(&card, device) == CUDA_SUCCESS;

	physical_refs_lock();
	if (known)
		bound(bind, card, offset);
	else
		physical_drop(bind->piece);
	physical_drop(bind->object);
	physical_refs_unlock();
	return result;
}

CUDA(cuMulticastCreate,
	(CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *properties))
{
	CUmemGenericAllocationHandle returned = 0;

	if (!handle)
		return REAL(cuMulticastCreate)(handle, properties);
	CUresult result = REAL(cuMulticastCreate)(&returned, properties);

	if (result != CUDA_SUCCESS)
		return result;
	physical_refs_lock();
	physical_handle_new(
		returned, physical_new(PHYSICAL_MULTICAST, GPUSHARE_KIND_PHYSICAL, 0, 0));
	physical_refs_unlock();
	*handle = returned;
	return result;
}

/* A process that imports the object calls this before it maps or binds anything. */
CUDA(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device))
{
	CUresult result = REAL(cuMulticastAddDevice)(handle, device);

	if (result != CUDA_SUCCESS)
		return result;
	physical_refs_lock();
	physical_is_multicast(physical_of_handle(handle));
	physical_refs_unlock();
	return result;
}

/* The device of the memory, for the forms that do not name it. */
static CUdevice device_of_memory(CUmemGenericAllocationHandle memory)
{
	CUmemAllocationProp properties;

	if (REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, memory) != CUDA_SUCCESS)
		return -1;
	return properties.location.id;
}

static CUdevice device_of_address(CUdeviceptr pointer)
{
	CUdevice device;

	if (REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) !=
		CUDA_SUCCESS)
		return -1;
	return device;
}

CUDA(cuMulticastBindMem,
	(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
		size_t memory_offset, size_t bytes, unsigned long long flags))
{
	const CUdevice device = device_of_memory(memory);
	const struct bind bind = bind_memory(handle, memory);

	return bind_settle(&bind,
		REAL(cuMulticastBindMem)(handle, offset, memory, memory_offset, bytes, flags),
		device, offset);
}

CUDA(cuMulticastBindMem_v2, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
				    CUmemGenericAllocationHandle memory, size_t memory_offset,
				    size_t bytes, unsigned long long flags))
{
	const struct bind bind = bind_memory(handle, memory);

	return bind_settle(&bind,
		REAL(cuMulticastBindMem_v2)(
			handle, device, offset, memory, memory_offset, bytes, flags),
		device, offset);
}

CUDA(cuMulticastBindAddr, (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer,
				  size_t bytes, unsigned long long flags))
{
	const CUdevice device = device_of_address(pointer);
	const struct bind bind = bind_address(handle, pointer);

	return bind_settle(&bind, REAL(cuMulticastBindAddr)(handle, offset, pointer, bytes, flags),
		device, offset);
}

CUDA(cuMulticastBindAddr_v2, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
				     CUdeviceptr pointer, size_t bytes, unsigned long long flags))
{
	const struct bind bind = bind_address(handle, pointer);

	return bind_settle(&bind,
		REAL(cuMulticastBindAddr_v2)(handle, device, offset, pointer, bytes, flags), device,
		offset);
}

/* Unless it was bound after those that the driver has undone. */
static void unbound(uint64_t object, unsigned card, size_t offset, uint32_t last)
{
	const uint64_t key = bind_key(object, card, offset);
	struct allocation bind;

	if (!allocations_find(&binds, key, &bind) || (int32_t)(bind.references - last) > 0)
		return;
	allocations_take(&binds, key, &bind);
	physical_drop(bind.owner);
}

CUDA(cuMulticastUnbind,
	(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes))
{
	unsigned card;

	physical_refs_lock();
	const uint64_t object = physical_of_handle(handle);
	const uint32_t last = last_bind;
	physical_refs_unlock();
	CUresult result = REAL(cuMulticastUnbind)(handle, device, offset, bytes);

	if (result != CUDA_SUCCESS || card_of_device(&card, device) != CUDA_SUCCESS)
		return result;
	physical_refs_lock();
	unbound(object, card, offset, last);
	physical_refs_unlock();
	return result;
}

static bool is_bound_to(const struct allocation *bind, void *found)
{
	struct allocation *wanted = found;

	if (bind->bytes != wanted->bytes || wanted->handle != 0)
		return false;
	*wanted = *bind;
	return true;
}

void multicast_end(uint64_t object)
{
	for (;;) {
		struct allocation bind = {.bytes = object};
		allocations_take_all(&binds, is_bound_to, &bind);
		if (bind.handle == 0)
			break;
		physical_drop(bind.owner);
	}
}

void multicast_forget(void)
{
	allocations_forget(&binds);
}
