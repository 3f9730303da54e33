/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: pool.c knows them, pool_allocate.c allocates from them and frees into them,
 * pool_change.c is the program's own handling of them, pool_share.c what other processes have.
 *
 * A pool is charged what the driver holds for it. An allocation that the books find room for in
 * what it keeps costs no look at the ledger; the driver is asked how much it holds when the pool is
 * expected to grow, and else after every so many bytes, for it may grow all the same: what is kept
 * may be in pieces, or still wait for another stream.
 */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include "backing.h"
#include "charge.h"

struct pool {
	struct backing backing; /* first: the books know a pool by it */
	CUmemoryPool handle;
	_Atomic uint64_t unseen; /* bytes handed out since the driver was asked */
	_Atomic bool ended;	 /* destroyed, while some of it was live */
};

#pragma GCC visibility push(hidden)
/* Stand for all pools of the host, which take nothing of a card, and for all that other processes
 * made: they are charged there. */
extern struct pool host_pool, imported_pool;
#pragma GCC visibility pop

/* The pool of this handle. One that the program did not make, a default pool, is made known; it is
 * the device's where the driver does not tell. */
CUresult pool_find(struct pool **pool, CUmemoryPool handle, CUdevice device);

/* Know `handle`, of which the program just said or heard where it lies. */
CUresult pool_place(CUmemoryPool handle, CUmemAllocationType type, const CUmemLocation *location);

/* Of one that is known already; NULL if it is not. */
struct pool *pool_known(CUmemoryPool handle);

/* An allocation of kind POOL, whose owner is its pool, was freed, whichever way. */
void pool_freed(const struct allocation *allocation);

static inline bool pool_is_charged(const struct pool *pool)
{
	return pool != &host_pool && pool != &imported_pool;
}

/* A handle that is about to be destroyed is forgotten before, for the driver may give it again. */
void pool_forget(CUmemoryPool handle);
void pool_remember(CUmemoryPool handle, struct pool *pool);

/* End it in the driver: its handle is no more; it is itself until the last of its memory is freed.
 */
CUresult pool_destroy(struct pool *pool);

void pools_after_fork_in_child(void);

#endif
