/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools that several processes use. Their memory is charged to the process that created the pool
 * and allocates from it; others map single allocations of it.
 */
#include "cards.h"
#include "charge.h"
#include "pool.h"
#include "quota/ledger.h"

CUDA(cuMemPoolExportToShareableHandle,
	(void *exported, CUmemoryPool pool, CUmemAllocationHandleType type,
		unsigned long long flags))
{
	return SHARING(REAL(cuMemPoolExportToShareableHandle)(exported, pool, type, flags));
}

CUDA(cuMemPoolImportFromShareableHandle,
	(CUmemoryPool * pool, void *exported, CUmemAllocationHandleType type,
		unsigned long long flags))
{
	CUresult result =
		SHARING(REAL(cuMemPoolImportFromShareableHandle)(pool, exported, type, flags));

	if (result == CUDA_SUCCESS)
		pool_remember(*pool, &imported_pool);
	return result;
}

CUDA(cuMemPoolExportPointer, (CUmemPoolPtrExportData * exported, CUdeviceptr pointer))
{
	struct allocation allocation;
	CUresult result = SHARING(REAL(cuMemPoolExportPointer)(exported, pointer));

	if (result != CUDA_SUCCESS || !allocations_take(&buffers, pointer, &allocation))
		return result;
	/* Once, however many processes receive it. */
	if (!(allocation.references & CHARGE_EXPORTED))
		ledger_export(allocation.card, allocation.bytes);
	allocation.references |= CHARGE_EXPORTED;
	charge_note(&allocation);
	return result;
}

static CUresult device_of_pointer(CUdevice *device, CUdeviceptr pointer)
{
	return REAL(cuPointerGetAttribute)(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
}

CUDA(cuMemPoolImportPointer,
	(CUdeviceptr * pointer, CUmemoryPool pool, CUmemPoolPtrExportData *exported))
{
	CUdevice device;
	size_t bytes = 0;
	unsigned card;
	CUresult result = SHARING(REAL(cuMemPoolImportPointer)(pointer, pool, exported));

	if (result != CUDA_SUCCESS ||
		REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *pointer) != CUDA_SUCCESS ||
		device_of_pointer(&device, *pointer) != CUDA_SUCCESS ||
		card_of_device(&card, device) != CUDA_SUCCESS)
		return result;
	const struct allocation allocation = {.handle = *pointer,
		.bytes = bytes,
		.owner = (uintptr_t)&imported_pool,
		.card = (uint16_t)card,
		.kind = GPUSHARE_KIND_POOL};
	ledger_import(card, bytes);
	charge_note(&allocation);
	return result;
}
