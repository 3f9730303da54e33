/* SPDX-License-Identifier: Apache-2.0
 *
 * An import of unknown size may be of a piece that this very process exported. While there is one
 * that was never mapped, an exported piece that ends here stays charged: it may live on in there.
 *
 * Lock order: `books` is a leaf but for the tables' own locks.
 */
#include "pieces.h"

#include <pthread.h>

#include "multicast.h"
#include "quota/ledger.h"

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;

/* By a number of our own, for the driver may give a handle again while memory that it stood for is
 * still mapped. The owner of an entry is its class. */
static struct allocations pieces;
struct allocations piece_handles;
struct allocations piece_mappings;
static uint64_t last_piece;

static struct {
	uint64_t imports; /* that were never mapped */
	uint64_t bytes[GPUSHARE_KINDS];
} doubtful[GPUSHARE_MAX_CARDS];

void pieces_lock(void)
{
	pthread_mutex_lock(&books);
}

void pieces_unlock(void)
{
	pthread_mutex_unlock(&books);
}

void piece_put(struct allocations *table, const struct allocation *entry)
{
	struct allocation stale;

	allocations_add(table, entry, &stale);
}

uint64_t piece_new(enum piece_class class, enum gpushare_kind kind, unsigned card, uint64_t bytes)
{
	struct allocation piece = {.handle = ++last_piece,
		.bytes = bytes,
		.owner = class,
		.card = (uint16_t)card,
		.kind = (uint16_t)kind};

	if (class == PIECE_IMPORTED)
		doubtful[card].imports++;
	piece_put(&pieces, &piece);
	return piece.handle;
}

void piece_hold(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	piece.references++;
	piece_put(&pieces, &piece);
}

/* An exported piece is taken back before its charge, that what others still map be somebody's. */
static void exported_end(unsigned card, enum gpushare_kind kind, uint64_t bytes)
{
	ledger_unexport(card, bytes);
	ledger_release(card, kind, bytes);
}

/* An import of unknown size is none any more. */
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

static void piece_end(const struct allocation *piece)
{
	switch ((enum piece_class)piece->owner) {
	case PIECE_OWN:
		ledger_release(piece->card, piece->kind, piece->bytes);
		break;
	case PIECE_EXPORTED:
		if (doubtful[piece->card].imports > 0)
			doubtful[piece->card].bytes[piece->kind] += piece->bytes;
		else
			exported_end(piece->card, piece->kind, piece->bytes);
		break;
	case PIECE_IMPORTED:
		if (piece->bytes > 0)
			ledger_unimport(piece->card, piece->bytes);
		else
			doubt_less(piece->card);
		break;
	case PIECE_MULTICAST:
		multicast_end(piece->handle);
		break;
	}
}

void piece_drop(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (--piece.references > 0)
		piece_put(&pieces, &piece);
	else
		piece_end(&piece);
}

void piece_handle_add(CUmemGenericAllocationHandle handle, uint64_t number)
{
	struct allocation entry;

	if (!allocations_take(&piece_handles, handle, &entry)) {
		entry = (struct allocation){.handle = handle, .owner = number};
		piece_hold(number);
	}
	entry.references++;
	piece_put(&piece_handles, &entry);
}

void piece_handle_new(CUmemGenericAllocationHandle handle, uint64_t number)
{
	struct allocation stale;

	/* It was released where we did not see it. */
	if (allocations_take(&piece_handles, handle, &stale))
		piece_drop(stale.owner);
	piece_handle_add(handle, number);
}

uint64_t piece_of_handle(CUmemGenericAllocationHandle handle)
{
	struct allocation entry;

	return allocations_find(&piece_handles, handle, &entry) ? entry.owner : 0;
}

uint64_t piece_hold_mapped(CUdeviceptr pointer)
{
	struct allocation mapping;

	if (!allocations_find_at(&piece_mappings, pointer, &mapping))
		return 0;
	piece_hold(mapping.owner);
	return mapping.owner;
}

void piece_export(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (piece.owner == PIECE_OWN) {
		piece.owner = PIECE_EXPORTED;
		ledger_export(piece.card, piece.bytes);
	}
	piece_put(&pieces, &piece);
}

void piece_reaches(uint64_t number, uint64_t bytes)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (piece.owner == PIECE_IMPORTED && bytes > piece.bytes) {
		bool was_unknown = piece.bytes == 0;
		ledger_import(piece.card, bytes - piece.bytes);
		piece.bytes = bytes;
		if (was_unknown)
			doubt_less(piece.card);
	}
	piece_put(&pieces, &piece);
}

void piece_is_multicast(uint64_t number)
{
	struct allocation piece;

	if (!allocations_take(&pieces, number, &piece))
		return;
	if (piece.owner == PIECE_IMPORTED) {
		if (piece.bytes > 0)
			ledger_unimport(piece.card, piece.bytes);
		else
			doubt_less(piece.card);
		piece.bytes = 0;
		piece.owner = PIECE_MULTICAST;
	}
	piece_put(&pieces, &piece);
}

void pieces_before_fork(void)
{
	pieces_lock();
}

void pieces_after_fork_in_parent(void)
{
	pieces_unlock();
}

void pieces_after_fork_in_child(void)
{
	allocations_forget(&pieces);
	allocations_forget(&piece_handles);
	allocations_forget(&piece_mappings);
	multicast_forget();
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++) {
		doubtful[card].imports = 0;
		for (unsigned kind = 0; kind < GPUSHARE_KINDS; kind++)
			doubtful[card].bytes[kind] = 0;
	}
	pieces_unlock();
}
