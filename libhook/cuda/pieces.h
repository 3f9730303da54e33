/* SPDX-License-Identifier: Apache-2.0
 *
 * The books of physical memory: which pieces of it this process refers to. The driver keeps a piece
 * for as long as a handle, a mapping or a multicast bind refers to it, and so does its charge.
 */
#ifndef GPUSHARE_PIECES_H
#define GPUSHARE_PIECES_H

#include "filter.h"
#include "quota/allocations.h"

enum piece_class {
	PIECE_OWN,	 /* charged here */
	PIECE_EXPORTED,	 /* charged here, and others may refer to it */
	PIECE_IMPORTED,	 /* charged at its maker; its size shows when it is mapped */
	PIECE_MULTICAST, /* no memory, but what memory is bound to */
};

#pragma GCC visibility push(hidden)
/* By handle, and by address; the owner of an entry is its piece's number. */
extern struct allocations piece_handles;
extern struct allocations piece_mappings;
#pragma GCC visibility pop

/* The books are changed by one thread at a time, and never while the driver is called. All that
 * follows is for who has them. */
void pieces_lock(void);
void pieces_unlock(void);

/* Enter a piece that nothing refers to yet; return its number, never 0. */
uint64_t piece_new(enum piece_class class, enum gpushare_kind kind, unsigned card, uint64_t bytes);

/* One more reference, and one less; number 0 is no piece's. */
void piece_hold(uint64_t number);
void piece_drop(uint64_t number);

/* One more reference by a handle; the first one if the driver has just made the handle. */
void piece_handle_new(CUmemGenericAllocationHandle handle, uint64_t number);
void piece_handle_add(CUmemGenericAllocationHandle handle, uint64_t number);

/* What the handle stands for; 0 if it is no piece of the books. */
uint64_t piece_of_handle(CUmemGenericAllocationHandle handle);

/* As piece_hold, of what is mapped at this address; 0 if that is no piece of the books. */
uint64_t piece_hold_mapped(CUdeviceptr pointer);

/* Others may refer to it from now on. */
void piece_export(uint64_t number);

/* It is at least so large: it was mapped so far. */
void piece_reaches(uint64_t number, uint64_t bytes);

/* What seemed to be imported memory is a multicast object. */
void piece_is_multicast(uint64_t number);

/* An entry put back, or changed. A table that cannot grow loses it; what it was charged then stays
 * until the process ends. */
void piece_put(struct allocations *table, const struct allocation *entry);

void pieces_before_fork(void);
void pieces_after_fork_in_parent(void);
void pieces_after_fork_in_child(void);

#endif
