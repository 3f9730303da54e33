/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a piece of work will take, learned from those like it: by kind, by which kernel or
 * graph, and by size, rounded to a quarter of a power of two. A table of fixed size; what has no
 * place in it any more is learned anew. The caller keeps others out.
 */
#ifndef GPUSHARE_ESTIMATE_H
#define GPUSHARE_ESTIMATE_H

#include <stdint.h>

#define ESTIMATES 2048 /* a power of two */
#define ESTIMATE_NONE UINT16_MAX

struct estimate {
	const void *what;
	uint32_t form; /* kind and size; 0: the place is free */
	uint32_t samples;
	uint64_t ns;
};

struct estimates {
	struct estimate place[ESTIMATES];
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

	return (uint32_t)(mixed >> 53); /* a product's upper bits depend on all of its factors' */
}

/* Where the work is not in its first place. */
uint16_t estimate_place_elsewhere(struct estimates *table, const void *what, uint32_t form);

/* The place of such work, a new one where none is known: without samples yet. */
static inline uint16_t estimate_place(
	struct estimates *table, unsigned kind, const void *what, uint64_t size)
{
	const uint32_t form = (estimate_size_class(size) << 3 | kind) + 1;
	const uint16_t first = (uint16_t)(estimate_hash(what, form) % ESTIMATES);
	const struct estimate *entry = &table->place[first];

	return __builtin_expect(entry->form == form && entry->what == what, 1)
		       ? first
		       : estimate_place_elsewhere(table, what, form);
}

/* `count` pieces of that place took `taken_ns` together where `expected_ns` was expected. Alone:
 * nothing else was in that time, so it is a sample and not only a hint. */
void estimate_learn(struct estimates *table, uint16_t place, uint32_t count, uint64_t expected_ns,
	uint64_t taken_ns, int alone);

/* `what` is no more, whatever sizes of it are known. */
void estimate_forget(struct estimates *table, const void *what);

#endif
