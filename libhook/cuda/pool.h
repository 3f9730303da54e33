/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools: pool.c records them, pool_allocate.c allocates from them and frees into them,
 * pool_change.c handles the program's changes to them, pool_share.c their use by other processes.
 *
 * A pool is charged what the driver holds for it. An allocation that fits into what the pool is
 * known to retain does not touch the ledger. The driver is queried when the pool is expected to
 * grow, and otherwise after a certain number of bytes, because the pool may grow anyway: what it
 * retains may be fragmented, or still wait for another stream.
 */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include "backing.h"
#include "charge.h"

struct pool {
	struct backing backing; /* must be first: the list of backings identifies a pool by it */
	CUmemoryPool handle;
	_Atomic uint64_t unseen; /* bytes handed out since the driver was last queried */
	_Atomic bool ended;	 /* destroyed while some of it was in use */
};

#pragma GCC visibility push(hidden)
/* Stand for all pools on the host, which take no memory of a card, and for all pools that other
 * processes created and are charged for. */
extern struct pool host_pool, imported_pool;
#pragma GCC visibility pop

/* The pool of this handle. A pool that the program did not create is recorded; it is the device's
 * default pool unless the driver reports otherwise. */
CUresult pool_find(struct pool **pool, CUmemoryPool handle, CUdevice device);

/* Record `handle`, whose location the program has just stated or queried. */
CUresult pool_place(CUmemoryPool handle, CUmemAllocationType type, const CUmemLocation *location);

/* The record of a known pool; NULL if it is not known. */
struct pool *pool_known(CUmemoryPool handle);

/* An allocation of kind POOL, whose owner is its pool, was freed by any function. */
void pool_freed(const struct allocation *allocation);

static inline bool pool_is_charged(const struct pool *pool)
{
	return pool != &host_pool && pool != &imported_pool;
}

/* Forget a handle before it is destroyed, because the driver may reuse it. */
void pool_forget(CUmemoryPool handle);
void pool_remember(CUmemoryPool handle, struct pool *pool);

/* Destroy it in the driver: its handle is gone, but the pool lasts until its last memory is
 * freed. */
CUresult pool_destroy(struct pool *pool);

void pools_after_fork_in_child(void);

#endif
