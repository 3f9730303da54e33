/* SPDX-License-Identifier: Apache-2.0
 *
 * An import of unknown size may be of a piece that this very process exported. While there is one
 * that was never mapped, an exported piece that ends here stays charged, because the import may
 * keep it alive.
 *
 * Lock order: `books` is a leaf except for the tables' own locks.
 */
#include "physical_refs.h"

#include <pthread.h>

#include "multicast.h"
#include "quota/ledger.h"

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;

/* By a number of our own, because the driver may reuse a handle while the earlier memory is still
 * mapped. The owner of an entry is its class. */
static struct allocations pieces;
struct allocations physical_handles;
struct allocations physical_mappings;
static uint64_t last_piece;

static struct {
	uint64_t imports; /* that were never mapped */
	uint64_t bytes[GPUSHARE_KINDS];
} doubtful[GPUSHARE_MAX_CARDS];

void physical_refs_lock(void)
{
	pthread_mutex_lock(&books);
}

void physical_refs_unlock(void)
{
	pthread_mutex_unlock(&books);
}

void physical_put(struct allocations *table, const struct allocation *entry)
{
	struct allocation stale;

	allocations_add(table, entry, &stale);
}

uint64_t physical_new(
	enum physical_class class, enum gpushare_kind kind, unsigned card, uint64_t bytes)
{
	struct allocation piece = {.handle = ++last_piece,
		.bytes = bytes,
		.owner = class,
		.card = (uint16_t)card,
		.kind = (uint16_t)kind};

	if (class == PHYSICAL_IMPORTED)
		doubtful[card].imports++;
	physical_put(&pieces, &piece);
	return piece.handle;
}

void physical_hold(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	piece.references++;
	physical_put(&pieces, &piece);
}

/* An export is withdrawn before its charge, so that memory that others still map is always charged
 * to a process. */
static void exported_end(unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	ledger_unexport(card, bytes);
	ledger_release(card, kind, bytes);
}

/* One import less of unknown size. */
static void doubt_less(unsigned card)
{
	if (--doubtful[card].imports > 0)
		return;
	for (unsigned kind = 0; kind < GPUSHARE_KINDS; kind++) {
		if (doubtful[card].bytes[kind])
			exported_end(card, kind, doubtful[card].bytes[kind]);
		doubtful[card].bytes[kind] = 0;
	}
}

static void physical_end(const struct allocation *piece)
{
	switch ((enum physical_class)piece->owner) {
	case PHYSICAL_OWN:
		ledger_release(piece->card, piece->kind, piece->bytes);
		break;
	case PHYSICAL_EXPORTED:
		if (doubtful[piece->card].imports > 0)
			doubtful[piece->card].bytes[piece->kind] += piece->bytes;
		else
			exported_end(piece->card, piece->kind, piece->bytes);
		break;
	case PHYSICAL_IMPORTED:
		if (piece->bytes > 0)
			ledger_unimport(piece->card, piece->bytes);
		else
			doubt_less(piece->card);
		break;
	case PHYSICAL_MULTICAST:
		multicast_end(piece->handle);
		break;
	}
}

void physical_drop(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (--piece.references > 0)
		physical_put(&pieces, &piece);
	else
		physical_end(&piece);
}

void physical_handle_add(CUmemGenericAllocationHandle handle, uint64_t number)
{
	struct allocation entry;

	if (!allocations_take(&physical_handles, handle, &entry)) {
		entry = (struct allocation){.handle = handle, .owner = number};
		physical_hold(number);
	}
	entry.references++;
	physical_put(&physical_handles, &entry);
}

void physical_handle_new(CUmemGenericAllocationHandle handle, uint64_t number)
{
	struct allocation stale;

	/* It was released in a way that the library did not see. */
	if (allocations_take(&physical_handles, handle, &stale))
		physical_drop(stale.owner);
	physical_handle_add(handle, number);
}

uint64_t physical_of_handle(CUmemGenericAllocationHandle handle)
{
	struct allocation entry;

	return allocations_find(&physical_handles, handle, &entry) ? entry.owner : 0;
}

uint64_t physical_hold_mapped(CUdeviceptr pointer)
{
	struct allocation mapping;

	if (!allocations_find_at(&physical_mappings, pointer, &mapping))
		return 0;
	physical_hold(mapping.owner);
	return mapping.owner;
}

void physical_export(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (piece.owner == PHYSICAL_OWN) {
		piece.owner = PHYSICAL_EXPORTED;
		ledger_export(piece.card, piece.bytes);
	}
	physical_put(&pieces, &piece);
}

void physical_reaches(uint64_t number, uint64_t bytes)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (piece.owner == PHYSICAL_IMPORTED && bytes > piece.bytes) {
		bool was_unknown = piece.bytes == 0;
		ledger_import(piece.card, bytes - piece.bytes);
		piece.bytes = bytes;
		if (was_unknown)
			doubt_less(piece.card);
	}
	physical_put(&pieces, &piece);
}

void physical_is_multicast(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (piece.owner == PHYSICAL_IMPORTED) {
		if (piece.bytes > 0)
			ledger_unimport(piece.card, piece.bytes);
		else
			doubt_less(piece.card);
		piece.bytes = 0;
		piece.owner = PHYSICAL_MULTICAST;
	}
	physical_put(&pieces, &piece);
}

void physical_refs_before_fork(void)
{
	physical_refs_lock();
}

void physical_refs_after_fork_in_parent(void)
{
	physical_refs_unlock();
}

void physical_refs_after_fork_in_child(void)
{
	allocations_forget(&pieces);
	allocations_forget(&physical_handles);
	allocations_forget(&physical_mappings);
	multicast_forget();
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++) {
		doubtful[card].imports = 0;
		for (unsigned kind = 0; kind < GPUSHARE_KINDS; kind++)
			doubtful[card].bytes[kind] = 0;
	}
	physical_refs_unlock();
}
