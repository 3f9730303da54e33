/* SPDX-License-Identifier: Apache-2.0
 *
 * What an allocation costs the quota, from before the driver is asked to after its answer:
 *
 *     struct charge charge;
 *     CUresult result = charge_reserve(&charge, card, bytes);
 *     if (result == CUDA_SUCCESS)
 *             result = charge_settle(&charge, REAL(...)(&pointer, bytes), &buffers, &pointer);
 */
#ifndef GPUSHARE_CHARGE_H
#define GPUSHARE_CHARGE_H

#include "filter.h"
#include "quota/allocations.h"

struct charge {
	unsigned card;
	uint64_t bytes;
	CUcontext context; /* see struct allocation */
};

/* Where the process's allocations are kept: device pointers, and physical memory handles. */
#pragma GCC visibility push(hidden)
extern struct allocations buffers;
extern struct allocations physical;
#pragma GCC visibility pop

/* Reserve before the driver allocates: between the two another thread must see the room as taken.
 * CUDA_ERROR_OUT_OF_MEMORY when the quota has no room. */
CUresult charge_reserve(struct charge *charge, unsigned card, uint64_t bytes);

/* As charge_reserve, for the current context's card and for memory that ends with the context. */
CUresult charge_reserve_current(struct charge *charge, uint64_t bytes);

/* After the driver's answer: keep the charge under *handle, or give it back. Return `result`. */
CUresult charge_settle(const struct charge *charge, CUresult result, struct allocations *table,
	const unsigned long long *handle);

/* Free `handle` with `result = free`, which is evaluated once, and give back what it was charged.
 */
#define CHARGE_FREE(table, handle, free)                                                           \
	({                                                                                         \
		struct allocation charged_;                                                        \
		bool known_ = allocations_take((table), (handle), &charged_);                      \
		charge_free((table), known_ ? &charged_ : NULL, (free));                           \
	})
CUresult charge_free(struct allocations *table, const struct allocation *charged, CUresult result);

#endif
