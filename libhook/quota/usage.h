/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's usage of a card: the sum over its processes, by the formula in gpushare_abi.h.
 */
#ifndef GPUSHARE_USAGE_H
#define GPUSHARE_USAGE_H

#include "pages.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SUM_ONE_BY_ONE 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SUM_ONE_BY_ONE 1
#endif
#endif

/* Each element is read whole, whatever happens to its neighbours: four at a time in vector
 * registers, which x86-64 and arm64 load as aligned 64-bit words. Among many processes, summing is
 * most of the cost of an allocation. */
static inline uint64_t sum_of(const _Atomic uint64_t *elements, unsigned count)
{
	uint64_t sum = 0;
	unsigned i = 0;

#ifndef SUM_ONE_BY_ONE
	typedef uint64_t four __attribute__((vector_size(32), may_alias));
	const volatile four *vectors = (const volatile four *)(const volatile void *)elements;
	four first = {0}, second = {0};
	for (; i + 8 <= count; i += 8) {
		first += vectors[i / 4];
		second += vectors[i / 4 + 1];
	}
	first += second;
	sum = first[0] + first[1] + first[2] + first[3];
#endif
	for (; i < count; i++)
		sum += atomic_load_explicit(&elements[i], memory_order_relaxed);
	return sum;
}

/* A process that published before it sums sees what all others published before theirs, and what it
 * reads after the sum was not read before it. On x86-64, the order of loads and the locked
 * instruction that published guarantee both; a fence would double the cost. */
static inline void loads_in_order(void)
{
#if defined(__x86_64__)
	atomic_signal_fence(memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Memory that outlived the process that created it: the third term in gpushare_abi.h. */
uint64_t orphaned_bytes(unsigned card);

/* All that is held, with managed memory that the quota does not count. */
static inline uint64_t usage_of(unsigned card)
{
	const struct gpushare_usage *usage = card_usage(card);
	const unsigned count = process_count();

	loads_in_order();
	uint64_t bytes =
		sum_of(usage->held, count) +
		atomic_load_explicit(&grant_card(card)->overhead_bytes, memory_order_relaxed);
	if (__builtin_expect(
		    atomic_load_explicit(&pages.status->sharing, memory_order_relaxed) != 0, 0))
		bytes += orphaned_bytes(card);
	return bytes;
}

/* The last term in gpushare_abi.h, with `more` bytes of managed memory: 0 for most tenants. */
uint64_t spared_bytes(unsigned card, uint64_t more);

static inline uint64_t managed_limit_bytes(unsigned card)
{
	return atomic_load_explicit(&grant_card(card)->managed_limit_bytes, memory_order_relaxed);
}

/* What counts against the quota. */
static inline uint64_t counted_bytes(unsigned card)
{
	uint64_t bytes = usage_of(card);

	if (__builtin_expect(managed_limit_bytes(card) != 0, 0)) {
		uint64_t spared = spared_bytes(card, 0);
		bytes -= spared < bytes ? spared : bytes;
	}
	return bytes;
}

static inline uint64_t quota_bytes(unsigned card)
{
	return atomic_load_explicit(&grant_card(card)->quota_bytes, memory_order_relaxed);
}

/* The most that may be used: the quota, or more while the tenant may burst. */
static inline uint64_t limit_bytes(unsigned card)
{
	return atomic_load_explicit(&grant_card(card)->limit_bytes, memory_order_relaxed);
}

static inline uint64_t free_bytes(uint64_t total, uint64_t used)
{
	return used < total ? total - used : 0;
}

#endif
