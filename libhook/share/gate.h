/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate before everything that starts work on a card. The scheduler opens and closes it in the
 * grant page; work that finds it open costs one relaxed load and is not counted.
 *
 *     struct gate_work work = {...};
 *     bool counted = !gate_is_open() && gate_enter(&work);
 *     CUresult result = REAL(...)(...);
 *     if (counted)
 *             gate_leave(&work, result == CUDA_SUCCESS);
 */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

enum gate_kind { GATE_KERNEL, GATE_GRAPH, GATE_COPY, GATE_FILL };

/* What is about to be submitted. What it costs is learned by kind, `what` and `size`. */
struct gate_work {
	enum gate_kind kind;
	unsigned card;
	const void *what; /* a CUfunction or CUgraphExec; NULL: all of a kind are alike */
	uint64_t size;	  /* threads of the grid, or bytes */
	void *stream;	  /* CUstream */
	bool per_thread;  /* what a null stream means */

	/* The gate's own, from gate_enter to gate_leave. */
	uint64_t estimate_ns;
	uint64_t key; /* names the stream; of a default one, with its context */
	uint32_t generation;
	uint16_t place; /* of the estimate */
	uint8_t stream_place;
	uint8_t marks;
};

/* The word to look at: of the tenant's only card, or one that is never open where there are several
 * and each must be looked at. */
#pragma GCC visibility push(hidden)
extern const _Atomic uint32_t *_Atomic gate_word;
#pragma GCC visibility pop

/* Start looking at the grant page. Needs pages_open. */
void gate_watch(void);

/* Wait until `work` may be submitted. True: it is counted, and gate_leave must be told what became
 * of it. Never waits longer than the gate's wait_max_ns. */
bool gate_enter(struct gate_work *work);

void gate_leave_slowly(struct gate_work *work, bool submitted);

static inline void gate_leave(struct gate_work *work, bool submitted)
{
	if (__builtin_expect(!submitted || work->marks != 0, 0))
		gate_leave_slowly(work, submitted);
}

/* `what` is about to be destroyed: who gets its address next costs something else. */
void gate_forget(const void *what);

/* The process ends: nobody waits any more, and nothing is counted. */
void gate_open_for_good(void);

void gate_before_fork(void);
void gate_after_fork_in_parent(void);
void gate_after_fork_in_child(void);

static inline bool gate_is_open(void)
{
	const _Atomic uint32_t *word = atomic_load_explicit(&gate_word, memory_order_relaxed);

	return __builtin_expect(
		atomic_load_explicit(word, memory_order_relaxed) == GPUSHARE_GATE_OPEN, 1);
}

#endif
