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
#include "insist.h"
#include "pieces.h"
#include "quota/ledger.h"

static CUresult physical_create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags, unsigned card)
{
	if (!handle)
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	/* The driver has managed memory in no figure of a process. */
	enum gpushare_kind kind = properties->type == CU_MEM_ALLOCATION_TYPE_MANAGED
					  ? GPUSHARE_KIND_MANAGED
					  : GPUSHARE_KIND_PHYSICAL;

	if (!ledger_reserve(card, kind, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUmemGenericAllocationHandle given = 0;
	CUresult result = INSIST(card, bytes, REAL(cuMemCreate)(&given, bytes, properties, flags));
	if (result != CUDA_SUCCESS) {
		ledger_release(card, kind, bytes);
		return result;
	}
	pieces_lock();
	piece_handle_new(given, piece_new(PIECE_OWN, kind, card, bytes));
	pieces_unlock();
	*handle = given;
	return result;
}

CUDA(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
			  const CUmemAllocationProp *properties, unsigned long long flags))
{
	unsigned card;

	if (!properties) /* an error */
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	const CUmemAllocationProp own = *properties;
	/* The host's memory is not ours to share out. */
	if (location_is_host(&own.location))
		return REAL(cuMemCreate)(handle, bytes, &own, flags);
	CUresult result = card_of_location(&card, &own.location);
	if (result != CUDA_SUCCESS)
		return result;
	return physical_create(handle, bytes, &own, flags, card);
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
	CUmemGenericAllocationHandle given = 0;

	if (!handle)
		return REAL(cuMemImportFromShareableHandle)(handle, exported, type);
	CUresult result = REAL(cuMemImportFromShareableHandle)(&given, exported, type);

	if (result != CUDA_SUCCESS)
		return result;
	bool is_on_card = card_of_import(&card, given);
	pieces_lock();
	/* The driver may answer with a handle that the process has already, of its own memory too.
	 */
	uint64_t known = piece_of_handle(given);
	if (known)
		piece_handle_add(given, known);
	else if (is_on_card)
		piece_handle_new(given, piece_new(PIECE_IMPORTED, GPUSHARE_KIND_PHYSICAL, card, 0));
	pieces_unlock();
	*handle = given;
	return result;
}

/* One reference less. While the driver released it, another thread may have been given the handle
 * anew: then its entry is of another piece, and the old one was dropped. */
static void handle_drop(CUmemGenericAllocationHandle handle, uint64_t piece)
{
	struct allocation entry;

	if (!piece || piece_of_handle(handle) != piece ||
		!allocations_take(&piece_handles, handle, &entry))
		return;
	if (--entry.references > 0)
		piece_put(&piece_handles, &entry);
	else
		piece_drop(piece);
}

/* Its entry stays until the driver has released it: another thread may be mapping it. */
CUDA(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	pieces_lock();
	const uint64_t piece = piece_of_handle(handle);
	pieces_unlock();
	CUresult result = REAL(cuMemRelease)(handle);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	handle_drop(handle, piece);
	pieces_unlock();
	return result;
}

/* Mappings are numbered, as `references`, so that what was mapped while the driver undid others
 * can be told from those. */
static uint32_t last_mapping;

static bool is_later(uint32_t mapping, uint32_t than)
{
	return (int32_t)(mapping - than) > 0;
}

/* With a reference to the piece that is the mapping's from now on. */
static void mapping_add(CUdeviceptr pointer, size_t bytes, uint64_t piece)
{
	struct allocation stale;
	const struct allocation mapping = {
		.handle = pointer, .bytes = bytes, .owner = piece, .references = ++last_mapping};

	/* The driver has undone it, or it would not have mapped this. */
	if (allocations_take(&piece_mappings, pointer, &stale))
		piece_drop(stale.owner);
	piece_put(&piece_mappings, &mapping);
}

/* The piece is held before the driver maps it: another thread may release its handle meanwhile. */
CUDA(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags))
{
	pieces_lock();
	const uint64_t piece = piece_of_handle(handle);
	piece_hold(piece);
	pieces_unlock();
	CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);

	pieces_lock();
	if (result == CUDA_SUCCESS) {
		/* Memory of the host is noted too, as no piece's: one call may undo its mapping
		 * and the next one's. */
		mapping_add(pointer, bytes, piece);
		piece_reaches(piece, offset + bytes);
	} else {
		piece_drop(piece);
	}
	pieces_unlock();
	return result;
}

/* One call may undo many mappings, one behind the other. */
static void mappings_end(CUdeviceptr pointer, size_t bytes, uint32_t last)
{
	const CUdeviceptr end = pointer + bytes;
	struct allocation mapping;

	while (pointer < end && allocations_find(&piece_mappings, pointer, &mapping)) {
		pointer += mapping.bytes;
		if (is_later(mapping.references, last))
			continue;
		allocations_take(&piece_mappings, mapping.handle, &mapping);
		piece_drop(mapping.owner);
	}
}

/* They stay in the books until the driver has undone them: another thread may be taking a handle of
 * what is mapped there, or binding it. */
CUDA(cuMemUnmap, (CUdeviceptr pointer, size_t bytes))
{
	pieces_lock();
	const uint32_t last = last_mapping;
	pieces_unlock();
	CUresult result = REAL(cuMemUnmap)(pointer, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	pieces_lock();
	mappings_end(pointer, bytes, last);
	pieces_unlock();
	return result;
}

CUDA(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *pointer))
{
	if (!handle)
		return REAL(cuMemRetainAllocationHandle)(handle, pointer);
	pieces_lock();
	const uint64_t mapped = piece_hold_mapped((uintptr_t)pointer);
	pieces_unlock();
	CUmemGenericAllocationHandle given = 0;
	CUresult result = REAL(cuMemRetainAllocationHandle)(&given, pointer);

	pieces_lock();
	if (result == CUDA_SUCCESS) {
		const uint64_t known = piece_of_handle(given);
		if (known || mapped)
			piece_handle_add(given, known ? known : mapped);
	}
	piece_drop(mapped);
	pieces_unlock();
	if (result == CUDA_SUCCESS)
		*handle = given;
	return result;
}
