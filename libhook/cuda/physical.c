/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory and its mappings. Its size is a multiple of the granularity, or the driver
 * refuses it, so it is exactly what the driver takes. Imported memory is charged to its creator.
 *
 * Memory that only a descriptor in flight refers to, and imported memory that was never mapped, is
 * in no figure of this library once its creator is gone: the size of an import is only known from
 * its mappings.
 */
#include "cards.h"
#include "charge.h"
#include "oom_retry.h"
#include "physical_refs.h"
#include "quota/ledger.h"

static CUresult physical_create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags, unsigned card)
{
	if (!handle)
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	/* Managed memory is not in the driver's figure for a process. */
	enum gpushare_kind kind = properties->type == CU_MEM_ALLOCATION_TYPE_MANAGED
					  ? GPUSHARE_KIND_MANAGED
					  : GPUSHARE_KIND_PHYSICAL;

	if (!ledger_reserve(card, kind, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUmemGenericAllocationHandle returned = 0;
	CUresult result =
		RETRY_ON_OOM(card, bytes, REAL(cuMemCreate)(&returned, bytes, properties, flags));
	if (result != CUDA_SUCCESS) {
		ledger_release(card, kind, bytes);
		return result;
	}
	physical_refs_lock();
	physical_handle_new(returned, physical_new(PHYSICAL_OWN, kind, card, bytes));
	physical_refs_unlock();
	*handle = returned;
	return result;
}

CUDA(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
			  const CUmemAllocationProp *properties, unsigned long long flags))
{
	unsigned card;

	if (!properties) /* an error */
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	const CUmemAllocationProp own = *properties;
	/* Host memory is not subject to a quota. */
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
	CUresult result =
		SHARING(REAL(cuMemExportToShareableHandle)(exported, handle, type, flags));

	if (result != CUDA_SUCCESS)
		return result;
	physical_refs_lock();
	physical_export(physical_of_handle(handle));
	physical_refs_unlock();
	return result;
}

/* The card of a handle that another process created. False: it takes no memory of a card. A driver
 * that cannot answer is too old for locations other than cards. */
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
	CUmemGenericAllocationHandle returned = 0;

	if (!handle)
		return REAL(cuMemImportFromShareableHandle)(handle, exported, type);
	CUresult result = SHARING(REAL(cuMemImportFromShareableHandle)(&returned, exported, type));

	if (result != CUDA_SUCCESS)
		return result;
	bool is_on_card = card_of_import(&card, returned);
	physical_refs_lock();
	/* The driver may return a handle that the process has already, even of its own memory. */
	uint64_t known = physical_of_handle(returned);
	if (known)
		physical_handle_add(returned, known);
	else if (is_on_card)
		physical_handle_new(
			returned, physical_new(PHYSICAL_IMPORTED, GPUSHARE_KIND_PHYSICAL, card, 0));
	physical_refs_unlock();
	*handle = returned;
	return result;
}

/* Remove a reference. While the driver released the handle, another thread may have received it
 * again: then its entry is of another piece, and the old entry was dropped. */
static void handle_drop(CUmemGenericAllocationHandle handle, uint64_t piece)
{
	struct allocation entry;

	if (!piece || physical_of_handle(handle) != piece ||
		!allocations_take(&physical_handles, handle, &entry))
		return;
	if (--entry.references > 0)
		physical_put(&physical_handles, &entry);
	else
		physical_drop(piece);
}

/* Its entry stays until the driver has released it: another thread may be mapping it. */
CUDA(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	physical_refs_lock();
	const uint64_t piece = physical_of_handle(handle);
	physical_refs_unlock();
	CUresult result = REAL(cuMemRelease)(handle);

	if (result != CUDA_SUCCESS)
		return result;
	physical_refs_lock();
	handle_drop(handle, piece);
	physical_refs_unlock();
	return result;
}

/* Mappings are numbered, in `references`, to distinguish those that were made while the driver
 * undid others. */
static uint32_t last_mapping;

static bool is_later(uint32_t mapping, uint32_t than)
{
	return (int32_t)(mapping - than) > 0;
}

/* The reference to the piece belongs to the mapping from now on. */
static void mapping_add(CUdeviceptr pointer, size_t bytes, uint64_t piece)
{
	struct allocation stale;
	const struct allocation mapping = {
		.handle = pointer, .bytes = bytes, .owner = piece, .references = ++last_mapping};

	/* The driver has undone it, or it would not have mapped this. */
	if (allocations_take(&physical_mappings, pointer, &stale))
		physical_drop(stale.owner);
	physical_put(&physical_mappings, &mapping);
}

/* The piece is held before the driver maps it: another thread may release its handle meanwhile. */
CUDA(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags))
{
	physical_refs_lock();
	const uint64_t piece = physical_of_handle(handle);
	physical_hold(piece);
	physical_refs_unlock();
	CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);

	physical_refs_lock();
	if (result == CUDA_SUCCESS) {
		/* Host memory is recorded too, without a piece: one call may undo its mapping
		 * together with the next. */
		mapping_add(pointer, bytes, piece);
		physical_reaches(piece, offset + bytes);
	} else {
		physical_drop(piece);
	}
	physical_refs_unlock();
	return result;
}

/* One call may undo several consecutive mappings. */
static void mappings_end(CUdeviceptr pointer, size_t bytes, uint32_t last)
{
	const CUdeviceptr end = pointer + bytes;
	struct allocation mapping;

	while (pointer < end && allocations_find(&physical_mappings, pointer, &mapping)) {
		pointer += mapping.bytes;
		if (is_later(mapping.references, last))
			continue;
		allocations_take(&physical_mappings, mapping.handle, &mapping);
		physical_drop(mapping.owner);
	}
}

/* They stay recorded until the driver has undone them: another thread may be retaining a handle of
 * what is mapped there, or binding it. */
CUDA(cuMemUnmap, (CUdeviceptr pointer, size_t bytes))
{
	physical_refs_lock();
	const uint32_t last = last_mapping;
	physical_refs_unlock();
	CUresult result = REAL(cuMemUnmap)(pointer, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	physical_refs_lock();
	mappings_end(pointer, bytes, last);
	physical_refs_unlock();
	return result;
}

CUDA(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *pointer))
{
	if (!handle)
		return REAL(cuMemRetainAllocationHandle)(handle, pointer);
	physical_refs_lock();
	const uint64_t mapped = physical_hold_mapped((uintptr_t)pointer);
	physical_refs_unlock();
	CUmemGenericAllocationHandle returned = 0;
	CUresult result = REAL(cuMemRetainAllocationHandle)(&returned, pointer);

	physical_refs_lock();
	if (result == CUDA_SUCCESS) {
		const uint64_t known = physical_of_handle(returned);
		if (known || mapped)
			physical_handle_add(returned, known ? known : mapped);
	}
	physical_drop(mapped);
	physical_refs_unlock();
	if (result == CUDA_SUCCESS)
		*handle = returned;
	return result;
}
