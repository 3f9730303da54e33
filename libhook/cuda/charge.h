/* SPDX-License-Identifier: Apache-2.0
 *
 * What an allocation costs the quota, from before the driver is asked to after its answer:
 *
 *     struct charge charge;
 *     CUresult result = charge_reserve(&charge, GPUSHARE_KIND_BUFFER, card, bytes);
 *     if (result == CUDA_SUCCESS)
 *             result = charge_settle(&charge, CHARGED(charge, REAL(...)(&given, bytes)), &given);
 *
 * The driver is given variables of ours to write to, and to read from what the charge was reckoned
 * by: what the program handed in, another of its threads may change at any moment.
 */
#ifndef GPUSHARE_CHARGE_H
#define GPUSHARE_CHARGE_H

#include "filter.h"
#include "insist.h"
#include "quota/allocations.h"

struct charge {
	unsigned card;
	enum gpushare_kind kind;
	uint64_t bytes;
	uint64_t context; /* context_owner()'s: whose end is this memory's end */
};

/* Marks of an entry of `buffers`, in its references: the lower bits are for the cards where it is
 * charged beside its own. */
#define CHARGE_ALSO_ON(card) (UINT32_C(1) << (card))
#define CHARGE_EXPORTED (UINT32_C(1) << 31)

/* The process's allocations that have an address. */
#pragma GCC visibility push(hidden)
extern struct allocations buffers;
#pragma GCC visibility pop

/* Reserve before the driver allocates: between the two another thread must see the room as taken.
 * CUDA_ERROR_OUT_OF_MEMORY when the quota has no room. */
CUresult charge_reserve(
	struct charge *charge, enum gpushare_kind kind, unsigned card, uint64_t bytes);

/* As charge_reserve, for the current context's card and for memory that ends with the context. */
CUresult charge_reserve_current(struct charge *charge, enum gpushare_kind kind, uint64_t bytes);

/* The driver's answer, on which it is insisted (insist.h). */
#define CHARGED(charge, call) INSIST((charge).card, (charge).bytes, (call))

/* After the driver's answer: keep the charge under *pointer, or give it back. Return `result`. */
CUresult charge_settle(const struct charge *charge, CUresult result, const CUdeviceptr *pointer);

/* As charge_settle, for what has a handle in a table of its own. */
CUresult charge_settle_in(
	struct allocations *table, const struct charge *charge, CUresult result, uint64_t handle);

/* Enter memory that is charged already. */
void charge_note(const struct allocation *allocation);

/* Give back what `handle` was charged if freeing it succeeds. `freeing` is evaluated once, when
 * the entry is out of the table: after, the driver may have given the handle to another thread. */
#define CHARGE_FREE_IN(table, handle, freeing)                                                     \
	({                                                                                         \
		struct allocation charged_;                                                        \
		bool known_ = allocations_take((table), (handle), &charged_);                      \
		charge_free((table), known_ ? &charged_ : NULL, (freeing));                        \
	})
#define CHARGE_FREE(pointer, freeing) CHARGE_FREE_IN(&buffers, pointer, freeing)
CUresult charge_free(struct allocations *table, const struct allocation *charged, CUresult result);

/* A context has ended, `card`'s primary one if 0, and took what is in `table` along. */
void charge_end_in(struct allocations *table, uint64_t context, unsigned card);

#endif
