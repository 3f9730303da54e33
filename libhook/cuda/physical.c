/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver keeps a piece of physical memory for as long as a handle or a mapping refers to it,
 * and so does its charge: programs release the handle as soon as the memory is mapped. The size is
 * a multiple of the granularity, or the driver refuses it, so it is exactly what the driver takes.
 *
 * Lock order: `references` is held for the books only, never while the driver is called.
 */
#include "physical.h"

#include <pthread.h>

#include "cards.h"
#include "charge.h"
#include "quota/ledger.h"

static pthread_mutex_t references = PTHREAD_MUTEX_INITIALIZER;

/* `pieces` by a number of our own, for the driver may give a handle again while memory that it
 * stood for is still mapped; handles and mappings (by address) have the piece's number as owner. */
static struct allocations pieces;
static struct allocations handles;
static struct allocations mappings;
static uint64_t last_piece;

/* A table that cannot grow loses the entry; the charge then stays until the process ends. */
static void put(struct allocations *table, const struct allocation *entry)
{
	struct allocation stale;

	allocations_add(table, entry, &stale);
}

static void piece_hold(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	piece.references++;
	put(&pieces, &piece);
}

static void piece_drop(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (--piece.references > 0)
		put(&pieces, &piece);
	else
		ledger_release(piece.card, GPUSHARE_KIND_PHYSICAL, piece.bytes);
}

static void handle_add(CUmemGenericAllocationHandle handle, uint64_t piece)
{
	struct allocation entry;

	if (!allocations_take(&handles, handle, &entry)) {
		entry = (struct allocation){.handle = handle, .owner = piece};
		piece_hold(piece);
	}
	entry.references++;
	put(&handles, &entry);
}

CUDA(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
			  const CUmemAllocationProp *properties, unsigned long long flags))
{
	struct charge charge;
	unsigned card;

	/* The host's memory is not ours to share out, and without properties it is an error. */
	if (!properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	CUresult result = card_of_device(&card, properties->location.id);
	if (result == CUDA_SUCCESS)
		result = charge_reserve(&charge, GPUSHARE_KIND_PHYSICAL, card, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemCreate)(handle, bytes, properties, flags);
	if (result != CUDA_SUCCESS) {
		ledger_release(card, GPUSHARE_KIND_PHYSICAL, bytes);
		return result;
	}
	pthread_mutex_lock(&references);
	struct allocation piece = {.handle = ++last_piece, .bytes = bytes, .card = (uint16_t)card};
	put(&pieces, &piece);
	handle_add(*handle, piece.handle);
	pthread_mutex_unlock(&references);
	return result;
}

/* Before the driver releases it: after, it may be another memory's already. */
static bool handle_take(CUmemGenericAllocationHandle handle, struct allocation *entry)
{
	pthread_mutex_lock(&references);
	bool known = allocations_take(&handles, handle, entry);
	if (known && entry->references > 1) {
		struct allocation rest = *entry;
		rest.references--;
		put(&handles, &rest);
	}
	pthread_mutex_unlock(&references);
	return known;
}

CUDA(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	struct allocation entry;
	bool known = handle_take(handle, &entry);
	CUresult result = REAL(cuMemRelease)(handle);

	if (!known)
		return result;
	pthread_mutex_lock(&references);
	if (result != CUDA_SUCCESS)
		put(&handles, &entry);
	else if (entry.references == 1)
		piece_drop(entry.owner);
	pthread_mutex_unlock(&references);
	return result;
}

CUDA(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset,
		       CUmemGenericAllocationHandle handle, unsigned long long flags))
{
	struct allocation entry;
	CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&references);
	/* Memory that is not ours (imported, or the host's) is noted too, as no piece's: one call
	 * may undo its mapping and the next one's. */
	uint64_t piece = allocations_find(&handles, handle, &entry) ? entry.owner : 0;
	struct allocation mapping = {.handle = pointer, .bytes = bytes, .owner = piece};
	put(&mappings, &mapping);
	piece_hold(piece);
	pthread_mutex_unlock(&references);
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
	pthread_mutex_lock(&references);
	while (pointer < end && allocations_take(&mappings, pointer, &mapping)) {
		pointer += mapping.bytes;
		piece_drop(mapping.owner);
	}
	pthread_mutex_unlock(&references);
	return result;
}

CUDA(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *pointer))
{
	struct allocation entry;
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, pointer);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&references);
	if (allocations_find(&handles, *handle, &entry) ||
		(allocations_find(&mappings, (uintptr_t)pointer, &entry) && entry.owner != 0))
		handle_add(*handle, entry.owner);
	pthread_mutex_unlock(&references);
	return result;
}

void physical_before_fork(void)
{
	pthread_mutex_lock(&references);
}

void physical_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&references);
}

void physical_after_fork_in_child(void)
{
	allocations_forget(&pieces);
	allocations_forget(&handles);
	allocations_forget(&mappings);
	pthread_mutex_unlock(&references);
}
