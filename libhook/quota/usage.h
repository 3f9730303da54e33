/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tenant uses of a card: the sum over its processes' slots, by gpushare_abi.h's formula.
 */
#ifndef GPUSHARE_USAGE_H
#define GPUSHARE_USAGE_H

#include "pages.h"

struct usage {
	uint64_t bytes;		/* all that counts against the quota */
	uint64_t pending_bytes; /* thereof not decided yet */
	uint64_t beside_bytes;	/* thereof measured beyond buffers and contexts */
};

static inline struct usage usage_of(unsigned card)
{
	const struct gpushare_grant_card *grant = grant_card(card);
	const struct gpushare_slot *slot = process_slot(card, 0);
	const unsigned count = process_count();
	uint64_t used = 0, pending = 0, contexts = 0;

	/* Pending before used: whoever settles adds to used before it takes from pending, so that
	 * in between bytes are counted twice and never not at all. Unrolled, for this loop is most
	 * of what an allocation among many processes costs. */
#pragma GCC unroll 4
	for (unsigned number = 0; number < count; number++) {
		pending += atomic_load(&slot[number].pending_bytes);
		used += atomic_load_explicit(&slot[number].used_bytes, memory_order_relaxed);
		contexts += atomic_load_explicit(&slot[number].contexts, memory_order_relaxed);
	}
	uint64_t measured = atomic_load_explicit(&grant->overhead_bytes, memory_order_relaxed);
	uint64_t overhead =
		contexts * atomic_load_explicit(&grant->context_bytes, memory_order_relaxed);
	uint64_t beside = overhead < measured ? measured - overhead : 0;
	struct usage usage = {.bytes = used + pending + overhead + beside,
		.pending_bytes = pending,
		.beside_bytes = beside};
	return usage;
}

static inline uint64_t quota_bytes(unsigned card)
{
	return atomic_load_explicit(&grant_card(card)->memory_bytes, memory_order_relaxed);
}

/* What may be used at most; the quota, or more while the daemon lends from what nobody uses. */
static inline uint64_t limit_bytes(unsigned card)
{
	return atomic_load_explicit(&grant_card(card)->memory_limit_bytes, memory_order_relaxed);
}

static inline uint64_t free_bytes(uint64_t total, uint64_t used)
{
	return used < total ? total - used : 0;
}

#endif
