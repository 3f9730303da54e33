/* SPDX-License-Identifier: Apache-2.0
 *
 * The expected duration of a unit of work, learned from similar ones: by kind, by kernel or graph,
 * and by size, rounded to a quarter of a power of two. The table has a fixed size; an entry that
 * was evicted is learned again. The caller provides locking.
 */
#ifndef GPUSHARE_ESTIMATE_H
#define GPUSHARE_ESTIMATE_H

#include <stdint.h>

#define ESTIMATES 2048 /* a power of two */
#define ESTIMATE_NONE UINT16_MAX
#define ESTIMATE_KINDS 8

struct estimate {
	_Alignas(32) const void *what; /* never on two cache lines */
	uint32_t form;		       /* kind and size; 0: the slot is free */
	uint32_t samples;
	uint64_t ns;
};

struct estimates {
	struct estimate place[ESTIMATES];
	/* By kind: how long work took lately that had no estimate. A module that is loaded again
	 * has new functions. */
	uint64_t unknown_ns[ESTIMATE_KINDS];
};

/* A quarter of a power of two. */
static inline uint32_t estimate_size_class(uint64_t size)
{
	if (size < 4)
		return (uint32_t)size;
	const uint32_t top = 63 - (uint32_t)__builtin_clzll(size);
	return top << 2 | (uint32_t)(size >> (top - 2) & 3);
}

static inline uint32_t estimate_hash(const void *what, uint32_t form)
{
	const uint64_t mixed =
		((uintptr_t)what ^ (uint64_t)form << 48) * UINT64_C(0x9e3779b97f4a7c15);

	return (uint32_t)(mixed >>
			  53); /* the upper bits of a product depend on all bits of its factors */
}

/* For work that is not in its first slot. */
uint16_t estimate_place_elsewhere(struct estimates *table, const void *what, uint32_t form);

static inline uint32_t estimate_form(unsigned kind, uint64_t size)
{
	return (estimate_size_class(size) << 3 | kind) + 1;
}

/* The slot of such work, or a new one without samples. */
static inline uint16_t estimate_place(
	struct estimates *table, unsigned kind, const void *what, uint64_t size)
{
	const uint32_t form = estimate_form(kind, size);
	const uint16_t first = (uint16_t)(estimate_hash(what, form) % ESTIMATES);
	const struct estimate *entry = &table->place[first];

	return __builtin_expect(entry->form == form && entry->what == what, 1)
		       ? first
		       : estimate_place_elsewhere(table, what, form);
}

/* What to expect of a unit of work: at least `least_ns` if it was never measured. */
static inline uint64_t estimate_of(
	const struct estimates *table, const struct estimate *entry, uint64_t least_ns)
{
	const uint64_t unknown_ns = table->unknown_ns[(entry->form - 1) % ESTIMATE_KINDS];

	if (entry->samples > 0)
		return entry->ns;
	return unknown_ns > least_ns ? unknown_ns : least_ns;
}

/* `count` units of work of that slot took `taken_ns` together; `expected_ns` was expected. `alone`:
 * nothing else ran in that time, so it is a sample and not only a hint. */
void estimate_learn(struct estimates *table, uint16_t place, uint32_t count, uint64_t expected_ns,
	uint64_t taken_ns, int alone);

/* The same for one unit of work that had no estimate, which may get none by that. */
void estimate_learn_unknown(struct estimates *table, uint16_t place, uint64_t taken_ns);

/* `what` was destroyed: forget it in all sizes. */
void estimate_forget(struct estimates *table, const void *what);

#endif
