/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory, and where it is mapped. Its size is a multiple of the granularity, or the driver
 * refuses it, so it is exactly what the driver takes. What is imported is charged where it was
 * made.
 *
 * What nobody refers to but a descriptor on its way, and what is imported and never mapped, is in
 * no figure of ours once its maker is gone: the size of an import shows only in its mappings.
 */
#include "cards.h"
#include "charge.h"
#include "pieces.h"
#include "quota/ledger.h"

static CUresult physical_create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags, unsigned card)
{
	/* The driver has managed memory in no figure of a process. */
	enum gpushare_kind kind = properties->type == CU_MEM_ALLOCATION_TYPE_MANAGED
					  ? GPUSHARE_KIND_MANAGED
					  : GPUSHARE_KIND_PHYSICAL;

	if (!ledger_reserve(card, kind, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemCreate)(handle, bytes, properties, flags);
	if (result != CUDA_SUCCESS) {
		ledger_release(card, kind, bytes);
		return result;
	}
	pieces_lock();
	piece_handle_new(*handle, piece_new(PIECE_OWN, kind, card, bytes));
	pieces_unlock();
	return result;
}

CUDA(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
			  const CUmemAllocationProp *properties, unsigned long long flags))
{
	unsigned card;

	/* Without properties it is an error; the host's memory is not ours to share out. */
	if (!properties || location_is_host(&properties->location))
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	CUresult result = card_of_location(&card, &properties->location);
	if (result != CUDA_SUCCESS)
		return result;
	return physical_create(handle, bytes, properties, flags, card);
}

CUDA(cuMemExportToShareableHandle,
	(void *exported, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
		unsigned long long flags))
{
	CUresult result = REAL(cuMemExportToShareableHandle)(exported, handle, type, flags);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	piece_export(piece_of_handle(handle));
	pieces_unlock();
	return result;
}

/* The card of a handle that another process made. False: it takes nothing of a card. A driver that
 * does not know is too old for other places than cards. */
static bool card_of_import(unsigned *card, CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp properties;

	*card = 0;
	if (REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_SUCCESS) {
		card_current(card);
		return true;
	}
	if (location_is_host(&properties.location))
		return false;
	if (card_of_location(card, &properties.location) != CUDA_SUCCESS)
		*card = 0;
	return true;
}

CUDA(cuMemImportFromShareableHandle,
	(CUmemGenericAllocationHandle * handle, void *exported, CUmemAllocationHandleType type))
{
	unsigned card;
	CUresult result = REAL(cuMemImportFromShareableHandle)(handle, exported, type);

	if (result != CUDA_SUCCESS)
		return result;
	bool is_on_card = card_of_import(&card, *handle);
	pieces_lock();
	/* The driver may answer with a handle that the process has already, of its own memory too.
	 */
	uint64_t known = piece_of_handle(*handle);
	if (known)
		piece_handle_add(*handle, known);
	else if (is_on_card)
		piece_handle_new(
			*handle, piece_new(PIECE_IMPORTED, GPUSHARE_KIND_PHYSICAL, card, 0));
	pieces_unlock();
	return result;
}

/* Before the driver releases it: after, it may be another memory's already. */
static bool handle_take(CUmemGenericAllocationHandle handle, struct allocation *entry)
{
	pieces_lock();
	bool known = allocations_take(&piece_handles, handle, entry);
	if (known && entry->references > 1) {
		struct allocation rest = *entry;
		rest.references--;
		piece_put(&piece_handles, &rest);
	}
	pieces_unlock();
	return known;
}

CUDA(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	struct allocation entry;
	bool known = handle_take(handle, &entry);
	CUresult result = REAL(cuMemRelease)(handle);

	if (!known)
		return result;
	pieces_lock();
	if (result != CUDA_SUCCESS)
		piece_put(&piece_handles, &entry);
	else if (entry.references == 1)
		piece_drop(entry.owner);
	pieces_unlock();
	return result;
}

CUDA(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags))
{
	CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	/* Memory of the host is noted too, as no piece's: one call may undo its mapping and the
	 * next one's. */
	uint64_t piece = piece_of_handle(handle);
	struct allocation mapping = {.handle = pointer, .bytes = bytes, .owner = piece};
	piece_put(&piece_mappings, &mapping);
	piece_hold(piece);
	piece_reaches(piece, offset + bytes);
	pieces_unlock();
	return result;
}

/* One call may undo many mappings, one behind the other. Nobody maps these addresses anew before it
 * returns: they are the program's to give, not the driver's. */
CUDA(cuMemUnmap, (CUdeviceptr pointer, size_t bytes))
{
	struct allocation mapping;
	CUresult result = REAL(cuMemUnmap)(pointer, bytes);
	CUdeviceptr end = pointer + bytes;

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	while (pointer < end && allocations_take(&piece_mappings, pointer, &mapping)) {
		pointer += mapping.bytes;
		piece_drop(mapping.owner);
	}
	pieces_unlock();
	return result;
}

CUDA(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *pointer))
{
	struct allocation mapping;
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, pointer);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	uint64_t piece = piece_of_handle(*handle);
	if (!piece && allocations_find_at(&piece_mappings, (uintptr_t)pointer, &mapping))
		piece = mapping.owner;
	if (piece)
		piece_handle_add(*handle, piece);
	pieces_unlock();
	return result;
}
