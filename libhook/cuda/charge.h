/* SPDX-License-Identifier: Apache-2.0
 *
 * The charge of an allocation, from before the driver is called until after its result:
 *
 *     struct charge charge;
 *     CUresult result = charge_reserve(&charge, GPUSHARE_KIND_BUFFER, card, bytes);
 *     if (result == CUDA_SUCCESS)
 *             result = charge_settle(&charge, CHARGED(charge, REAL(...)(&returned, bytes)),
 * &returned);
 *
 * The driver reads from and writes to variables of the library, the same ones from which the charge
 * was computed: another thread of the program may change the program's own at any moment.
 */
#ifndef GPUSHARE_CHARGE_H
#define GPUSHARE_CHARGE_H

#include "interpose.h"
#include "oom_retry.h"
#include "quota/allocations.h"
#include "quota/ledger.h"

struct charge {
	unsigned card;
	enum gpushare_kind kind;
	uint64_t bytes;
	uint64_t context; /* from context_owner(): the memory ends with that context */
};

/* Flags in the references of an entry of `buffers`: the lower bits are for the cards where it is
 * charged in addition to its own. */
#define CHARGE_ALSO_ON(card) (UINT32_C(1) << (card))
#define CHARGE_EXPORTED (UINT32_C(1) << 31)

/* The process's allocations that have an address. */
#pragma GCC visibility push(hidden)
extern struct allocations buffers;
#pragma GCC visibility pop

/* Reserve before the driver allocates: between the two, another thread must see the memory as
 * taken. CUDA_ERROR_OUT_OF_MEMORY if the quota has no room. */
CUresult charge_reserve(
	struct charge *charge, enum gpushare_kind kind, unsigned card, uint64_t bytes);

/* Like charge_reserve, for the current context's card and for memory that ends with the context. */
CUresult charge_reserve_current(struct charge *charge, enum gpushare_kind kind, uint64_t bytes);

/* The driver's result, after retries (oom_retry.h). */
#define CHARGED(charge, call) RETRY_ON_OOM((charge).card, (charge).bytes, (call))

/* After the driver's result: keep the charge under *pointer, or release it. Return `result`. */
CUresult charge_settle(const struct charge *charge, CUresult result, const CUdeviceptr *pointer);

/* Like charge_settle, for memory whose handle is in a table of its own. */
CUresult charge_settle_in(
	struct allocations *table, const struct charge *charge, CUresult result, uint64_t handle);

/* Add memory that is already charged. */
void charge_note(const struct allocation *allocation);

/* Release what `handle` was charged if freeing it succeeds. `freeing` is evaluated once, when the
 * entry is out of the table: afterwards, the driver may have given the handle to another thread. */
#define CHARGE_FREE_IN(table, handle, freeing)                                                     \
	({                                                                                         \
		struct allocation charged_;                                                        \
		bool known_ = allocations_take((table), (handle), &charged_);                      \
		charge_free((table), known_ ? &charged_ : NULL, (freeing));                        \
	})
#define CHARGE_FREE(pointer, freeing) CHARGE_FREE_IN(&buffers, pointer, freeing)
CUresult charge_free(struct allocations *table, const struct allocation *charged, CUresult result);

/* The driver's result of a call that exports or imports memory (ledger_share). */
#define SHARING(call) (ledger_share(), charge_shared(call))
CUresult charge_shared(CUresult result);

/* A context was destroyed, the primary one of `card` if 0, and with it the memory in `table`. */
void charge_end_in(struct allocations *table, uint64_t context, unsigned card);

#endif
