/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch gate: everything that starts work on a card passes it. The scheduler opens and closes
 * it in the grant page; work that finds it open costs one relaxed load and is not counted.
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

/* Work that is about to be submitted. Its duration is learned by kind, `what` and `size`. */
struct gate_work {
	enum gate_kind kind;
	unsigned card;
	const void *what; /* a CUfunction or CUgraphExec; NULL: all work of a kind is alike */
	uint64_t size;	  /* threads of the grid, or bytes */
	void *stream;	  /* CUstream */
	bool per_thread;  /* the meaning of a null stream */

	/* Private to the gate, from gate_enter to gate_leave. */
	uint64_t estimate_ns;
	uint64_t key; /* identifies the stream; for a default stream, includes its context */
	uint32_t generation;
	uint16_t place; /* of the estimate */
	uint8_t stream_place;
	uint8_t timing;
};

/* What every launch reads, and nothing writes meanwhile: one cache line. */
struct gate_line {
	/* The word to check: that of the tenant's only card, or one that is never open if there are
	 * several cards, each of which must be checked. */
	_Alignas(64) const _Atomic uint32_t *_Atomic word;
	/* With several cards: how many, and the word of the first one. 0: one card. */
	const _Atomic uint32_t *_Atomic first;
	_Atomic uint32_t cards;
	/* Captures in progress, in all threads (cuda/capture.h). */
	_Atomic uint32_t captures;
	/* The number of contexts that the process is known to have: with several, each has its own
	 * default streams. */
	_Atomic uint32_t contexts;
	/* Executable graphs that allocate memory (cuda/graph_memory.h). */
	_Atomic uint32_t allocating_graphs;
	/* The tenant's processes: one more than the highest number in use. */
	const _Atomic uint32_t *_Atomic processes;
	/* Not 0: the tenant is evicted, and calls of the driver wait (cuda/evicted.h). */
	const _Atomic uint32_t *_Atomic evicted;
};

#pragma GCC visibility push(hidden)
extern struct gate_line gate_line;
#pragma GCC visibility pop

/* Start reading the grant page. Needs pages_open. */
void gate_watch(void);

/* Start reading, or stop it, whether the tenant is evicted. Needs pages_open. */
void gate_watch_eviction(bool watch);

/* Wait until `work` may be submitted. True: it is counted, and gate_leave must be called with the
 * result. Never waits longer than the gate's wait_max_ns. */
bool gate_enter(struct gate_work *work);

/* The same for the case that nearly all launches are: one card, and work of known duration that
 * joins the group of the previous launch, with nothing that delays it. True: it is counted, and
 * there is nothing to do afterwards. False: gate_enter decides. If the driver refuses such work, it
 * stays in the group, whose duration is measured: no time is charged for it, and it counts as
 * finished when the group has. Everything is passed in registers, because a lock waits for all
 * earlier stores of its thread. */
bool gate_pass(enum gate_kind kind, const void *what, uint64_t size, void *stream, bool per_thread);

void gate_leave_slowly(struct gate_work *work, bool submitted);

static inline void gate_leave(struct gate_work *work, bool submitted)
{
	if (__builtin_expect(!submitted || work->timing != 0, 0))
		gate_leave_slowly(work, submitted);
}

/* `what` is about to be destroyed: its address may be reused for something with another
 * duration. */
void gate_forget(const void *what);

/* The process exits: launches no longer wait and are not counted. */
void gate_open_for_good(void);

void gate_before_fork(void);
void gate_after_fork_in_parent(void);
void gate_after_fork_in_child(void);

static inline bool gate_is_open(void)
{
	const _Atomic uint32_t *word = atomic_load_explicit(&gate_line.word, memory_order_relaxed);

	return __builtin_expect(
		atomic_load_explicit(word, memory_order_relaxed) == GPUSHARE_GATE_OPEN, 1);
}

#endif
