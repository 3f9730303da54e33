/* SPDX-License-Identifier: Apache-2.0 */
#include "multicast.h"

#include "cards.h"
#include "pieces.h"

/* By object, card and offset, mixed into one number: an unbind names the same three as its bind, or
 * the driver promises nothing. The owner is the piece that is bound, `bytes` the object's number.
 */
static struct allocations binds;

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

static void bound(CUmemGenericAllocationHandle handle, unsigned card, size_t offset, uint64_t piece)
{
	uint64_t object = piece_of_handle(handle);

	if (!object || !piece)
		return;
	piece_is_multicast(object);
	struct allocation bind = {
		.handle = bind_key(object, card, offset), .bytes = object, .owner = piece};
	piece_hold(piece);
	piece_put(&binds, &bind);
}

static CUresult bound_memory(CUresult result, CUmemGenericAllocationHandle handle, CUdevice device,
	size_t offset, CUmemGenericAllocationHandle memory)
{
	unsigned card;

	if (result != CUDA_SUCCESS || card_of_device(&card, device) != CUDA_SUCCESS)
		return result;
	pieces_lock();
	bound(handle, card, offset, piece_of_handle(memory));
	pieces_unlock();
	return result;
}

static CUresult bound_address(CUresult result, CUmemGenericAllocationHandle handle, CUdevice device,
	size_t offset, CUdeviceptr pointer)
{
	struct allocation mapping;
	unsigned card;

	if (result != CUDA_SUCCESS || card_of_device(&card, device) != CUDA_SUCCESS)
		return result;
	pieces_lock();
	if (allocations_find_at(&piece_mappings, pointer, &mapping))
		bound(handle, card, offset, mapping.owner);
	pieces_unlock();
	return result;
}

CUDA(cuMulticastCreate,
	(CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *properties))
{
	CUresult result = REAL(cuMulticastCreate)(handle, properties);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	piece_handle_new(*handle, piece_new(PIECE_MULTICAST, GPUSHARE_KIND_PHYSICAL, 0, 0));
	pieces_unlock();
	return result;
}

/* Whoever imported the object says so before it maps or binds anything. */
CUDA(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device))
{
	CUresult result = REAL(cuMulticastAddDevice)(handle, device);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	piece_is_multicast(piece_of_handle(handle));
	pieces_unlock();
	return result;
}

/* The device on which the memory lies, for the forms that do not say it. */
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
	CUresult result =
		REAL(cuMulticastBindMem)(handle, offset, memory, memory_offset, bytes, flags);

	return bound_memory(result, handle, device_of_memory(memory), offset, memory);
}

CUDA(cuMulticastBindMem_v2, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
				    CUmemGenericAllocationHandle memory, size_t memory_offset,
				    size_t bytes, unsigned long long flags))
{
	CUresult result = REAL(cuMulticastBindMem_v2)(
		handle, device, offset, memory, memory_offset, bytes, flags);

	return bound_memory(result, handle, device, offset, memory);
}

CUDA(cuMulticastBindAddr, (CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer,
				  size_t bytes, unsigned long long flags))
{
	CUresult result = REAL(cuMulticastBindAddr)(handle, offset, pointer, bytes, flags);

	return bound_address(result, handle, device_of_address(pointer), offset, pointer);
}

CUDA(cuMulticastBindAddr_v2, (CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
				     CUdeviceptr pointer, size_t bytes, unsigned long long flags))
{
	CUresult result =
		REAL(cuMulticastBindAddr_v2)(handle, device, offset, pointer, bytes, flags);

	return bound_address(result, handle, device, offset, pointer);
}

CUDA(cuMulticastUnbind,
	(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes))
{
	struct allocation bind;
	unsigned card;
	CUresult result = REAL(cuMulticastUnbind)(handle, device, offset, bytes);

	if (result != CUDA_SUCCESS || card_of_device(&card, device) != CUDA_SUCCESS)
		return result;
	pieces_lock();
	if (allocations_take(&binds, bind_key(piece_of_handle(handle), card, offset), &bind))
		piece_drop(bind.owner);
	pieces_unlock();
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
		piece_drop(bind.owner);
	}
}

void multicast_forget(void)
{
	allocations_forget(&binds);
}
