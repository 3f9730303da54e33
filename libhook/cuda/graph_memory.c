/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver takes memory for a graph when it is first uploaded or launched, and retains it for the
 * graph's next launch, or another graph's, until it is trimmed. Graphs of one stream may share
 * memory, graphs of several streams have their own (CUDA programming guide, "Graph memory nodes").
 *
 * Lock order: `making`, then `books` of backing.c.
 */
#include "graph_memory.h"

#include <pthread.h>
#include <stdlib.h>

#include "backing.h"
#include "cards.h"
#include "channel/log.h"
#include "oom_retry.h"
#include "quota/allocations.h"
#include "quota/usage.h"
#include "share/gate.h"

/* A device's graph memory. */
struct reserve {
	struct backing backing;
	CUdevice device;
	_Atomic uint64_t trims; /* how often it was trimmed, or a graph took memory of it that it
				   does not free */
	bool is_known;
};

static struct reserve reserves[GPUSHARE_MAX_CARDS];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* An executable graph that allocates. The program uses one from one thread at a time. */
struct executable {
	struct graph_demand demand;
	bool is_launched;
	uintptr_t stream;		    /* of its last upload or launch; 0: none yet */
	uint64_t trims[GPUSHARE_MAX_CARDS]; /* of its cards' reserves, at that time */
};

static struct allocations executables; /* owner: the struct executable */

static struct reserve *reserve_of(const struct backing *backing)
{
	return &reserves[backing->card];
}

static bool reserve_held(const struct backing *backing, uint64_t *bytes)
{
	return REAL(cuDeviceGetGraphMemAttribute)(reserve_of(backing)->device,
		       CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

static void reserve_trim(struct backing *backing)
{
	struct reserve *reserve = reserve_of(backing);

	atomic_fetch_add(&reserve->trims, 1);
	REAL(cuDeviceGraphMemTrim)(reserve->device);
}

static void reserve_emptied(struct backing *backing)
{
	atomic_fetch_add(&reserve_of(backing)->trims, 1);
}

static bool reserve_is_over(const struct backing *backing)
{
	(void)backing; /* it belongs to the device */
	return false;
}

static const struct backing_calls reserve_calls = {.held = reserve_held,
	.trim = reserve_trim,
	.emptied = reserve_emptied,
	.is_over = reserve_is_over};

static CUresult reserve_know(unsigned card)
{
	struct reserve *reserve = &reserves[card];
	unsigned other;
	int count = 0;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&making);
	if (!reserve->is_known) {
		result = REAL(cuDeviceGetCount)(&count);
		for (CUdevice device = 0; device < count; device++)
			if (card_of_device(&other, device) == CUDA_SUCCESS && other == card)
				reserve->device = device;
		reserve->backing.calls = &reserve_calls;
		reserve->backing.kind = GPUSHARE_KIND_GRAPH;
		reserve->backing.card = card;
		atomic_store(&reserve->backing.threshold, UINT64_MAX);
		backing_begin(&reserve->backing);
		reserve->is_known = true;
	}
	pthread_mutex_unlock(&making);
	return result;
}

static struct executable *executable_find(CUgraphExec graph)
{
	struct allocation entry;

	return allocations_find(&executables, (uintptr_t)graph, &entry)
		       ? (struct executable *)entry.owner
		       : NULL;
}

static void executable_add(CUgraphExec graph, struct executable *executable)
{
	struct allocation stale;
	struct allocation entry = {.handle = (uintptr_t)graph, .owner = (uintptr_t)executable};

	if (allocations_add(&executables, &entry, &stale))
		atomic_fetch_add(&gate_line.allocating_graphs, 1);
	else
		log_line(LOG_WARNING, "out of memory: cannot track a graph that allocates");
}

static bool demands_are_equal(const struct graph_demand *one, const struct graph_demand *other)
{
	bool equal = one->card_count == other->card_count;

	for (unsigned i = 0; i < one->card_count && equal; i++) {
		const struct card_demand *of_one = &one->cards[i], *of_other = &other->cards[i];
		equal = of_one->card == of_other->card && of_one->most == of_other->most &&
			of_one->outlives == of_other->outlives;
	}
	return equal;
}

CUresult graph_note(CUgraphExec graph, const struct graph_demand *demand)
{
	struct executable *executable = executable_find(graph);
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < demand->card_count && result == CUDA_SUCCESS; i++)
		result = reserve_know(demand->cards[i].card);
	if (result != CUDA_SUCCESS)
		return result;
	if (executable) {
		/* Memory that it has taken permanently is still there, unless the graph has
		 * changed. */
		executable->is_launched &= demands_are_equal(&executable->demand, demand);
		executable->demand = *demand;
		executable->stream = 0;
	} else {
		executable = calloc(1, sizeof(*executable));
		if (!executable)
			return CUDA_ERROR_OUT_OF_MEMORY;
		executable->demand = *demand;
		executable_add(graph, executable);
	}
	return CUDA_SUCCESS;
}

/* Streams with the same name may differ: the per-thread default stream is another one in each
 * thread. */
static uintptr_t stream_key(CUstream stream, enum null_stream null_stream)
{
	if (stream == CU_STREAM_PER_THREAD || (!stream && null_stream == NULL_IS_PER_THREAD))
		return (uintptr_t)pthread_self();
	return stream ? (uintptr_t)stream : (uintptr_t)CU_STREAM_LEGACY;
}

/* Whether it still has its memory from an earlier launch on this stream. */
static bool is_backed(const struct executable *executable, uintptr_t stream)
{
	const struct graph_demand *demand = &executable->demand;

	if (executable->stream != stream)
		return false;
	for (unsigned i = 0; i < demand->card_count; i++)
		if (executable->trims[i] != atomic_load(&reserves[demand->cards[i].card].trims))
			return false;
	return true;
}

static struct backing *backing_on(const struct executable *executable, unsigned i)
{
	return &reserves[executable->demand.cards[i].card].backing;
}

/* Whether the quota has room for everything that it may take. */
static bool most_fits(const struct executable *executable)
{
	for (unsigned i = 0; i < executable->demand.card_count; i++) {
		const struct card_demand *demand = &executable->demand.cards[i];
		if (counted_bytes(demand->card) + demand->most > limit_bytes(demand->card))
			return false;
	}
	return true;
}

static void count_from(
	const struct executable *executable, unsigned first, const uint64_t *reserved)
{
	for (unsigned i = first; i < executable->demand.card_count; i++)
		backing_count(backing_on(executable, i), reserved[i]);
}

static bool reserve_all(struct executable *executable, const uint64_t *bytes)
{
	executable->stream = 0;
	for (unsigned i = 0; i < executable->demand.card_count; i++) {
		unsigned card = executable->demand.cards[i].card;
		if (backing_reserve(backing_on(executable, i), bytes[i])) {
			/* If it is trimmed before, this launch allocates it again. */
			executable->trims[i] = atomic_load(&reserves[card].trims);
			continue;
		}
		while (i-- > 0)
			backing_count(backing_on(executable, i), bytes[i]);
		return false;
	}
	return true;
}

/* Make the driver release what it took: possible once the stream has passed the upload. */
static void undo_upload(const struct executable *executable, unsigned first, CUstream stream,
	enum null_stream null_stream)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	stream_wait(stream, null_stream);
	for (unsigned i = first; i < executable->demand.card_count; i++)
		reserve_trim(backing_on(executable, i));
	REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static CUresult upload(CUgraphExec graph, CUstream stream, enum null_stream null_stream)
{
	return null_stream == NULL_IS_LEGACY ? REAL(cuGraphUpload)(graph, stream)
					     : REAL(cuGraphUpload_ptsz)(graph, stream);
}

/* There is no room for everything that it may take, but it may take less, because it can use the
 * memory of other graphs of the stream. An upload shows the real amount, and can be undone, unlike
 * a launch. */
static CUresult upload_within_quota(struct executable *executable, CUgraphExec graph,
	CUstream stream, enum null_stream null_stream)
{
	const unsigned count = executable->demand.card_count;
	uint64_t reserved[GPUSHARE_MAX_CARDS];
	unsigned settled = 0;

	for (unsigned i = 0; i < count; i++) {
		uint64_t charged = atomic_load(&backing_on(executable, i)->charged);
		uint64_t least = executable->demand.cards[i].least;
		reserved[i] = least > charged ? least - charged : 0;
	}
	if (!reserve_all(executable, reserved))
		return CUDA_ERROR_OUT_OF_MEMORY;
	const struct card_demand *first = &executable->demand.cards[0];
	CUresult result =
		RETRY_ON_OOM(first->card, first->most, upload(graph, stream, null_stream));
	while (result == CUDA_SUCCESS && settled < count &&
		backing_settle(backing_on(executable, settled), &reserved[settled]))
		settled++;
	if (result == CUDA_SUCCESS && settled < count) {
		undo_upload(executable, settled, stream, null_stream);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	count_from(executable, settled, reserved);
	return result;
}

static bool outlives(const struct executable *executable)
{
	for (unsigned i = 0; i < executable->demand.card_count; i++)
		if (executable->demand.cards[i].outlives)
			return true;
	return false;
}

/* The first launch of a graph that does not free everything takes that memory permanently. An
 * upload does not show how much that will be, and other graphs then need new memory. */
static void take_for_good(
	const struct executable *executable, CUstream stream, enum null_stream null_stream)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!most_fits(executable)) {
		/* The memory of finished launches can be trimmed before a refusal. */
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
		stream_wait(stream, null_stream);
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	}
	for (unsigned i = 0; i < executable->demand.card_count; i++)
		atomic_fetch_add(&reserves[executable->demand.cards[i].card].trims, 1);
}

static CUresult start_within_quota(enum graph_start start, struct executable *executable,
	CUresult (*real)(CUgraphExec graph, CUstream stream), CUgraphExec graph, CUstream stream,
	enum null_stream null_stream)
{
	const uintptr_t key = stream_key(stream, null_stream);
	const bool for_good =
		start == GRAPH_LAUNCH && !executable->is_launched && outlives(executable);
	uint64_t reserved[GPUSHARE_MAX_CARDS] = {0};

	if (for_good)
		take_for_good(executable, stream, null_stream);
	if (for_good || !is_backed(executable, key)) {
		if (for_good || most_fits(executable)) {
			for (unsigned i = 0; i < executable->demand.card_count; i++)
				reserved[i] = executable->demand.cards[i].most;
		} else {
			CUresult result =
				upload_within_quota(executable, graph, stream, null_stream);
			if (result != CUDA_SUCCESS)
				return result;
		}
	}
	if (!reserve_all(executable, reserved))
		return CUDA_ERROR_OUT_OF_MEMORY;
	const struct card_demand *first = &executable->demand.cards[0];
	CUresult result = RETRY_ON_OOM(first->card, first->most, real(graph, stream));
	count_from(executable, 0, reserved);
	if (result == CUDA_SUCCESS) {
		executable->stream = key;
		executable->is_launched |= start == GRAPH_LAUNCH;
	}
	return result;
}

CUresult graph_start(enum graph_start start, CUresult (*real)(CUgraphExec graph, CUstream stream),
	CUgraphExec graph, CUstream stream, enum null_stream null_stream)
{
	struct executable *executable = executable_find(graph);

	if (!executable || stream_is_captured(stream, null_stream))
		return real(graph, stream);
	return start_within_quota(start, executable, real, graph, stream, null_stream);
}

/* Its memory is retained for other graphs. */
CUDA(cuGraphExecDestroy, (CUgraphExec graph))
{
	struct executable *executable = NULL;
	struct allocation entry;

	/* Before: afterwards, the driver may have given the handle to another thread. */
	gate_forget(graph);
	if (atomic_load_explicit(&gate_line.allocating_graphs, memory_order_relaxed) > 0 &&
		allocations_take(&executables, (uintptr_t)graph, &entry)) {
		executable = (struct executable *)entry.owner;
		atomic_fetch_sub(&gate_line.allocating_graphs, 1);
	}
	CUresult result = REAL(cuGraphExecDestroy)(graph);
	if (!executable)
		return result;
	if (result != CUDA_SUCCESS) {
		executable_add(graph, executable);
		return result;
	}
	for (unsigned i = 0; i < executable->demand.card_count; i++)
		backing_look(backing_on(executable, i));
	free(executable);
	return result;
}

CUDA(cuDeviceGraphMemTrim, (CUdevice device))
{
	unsigned card;
	CUresult result = REAL(cuDeviceGraphMemTrim)(device);

	if (result == CUDA_SUCCESS && card_of_device(&card, device) == CUDA_SUCCESS) {
		atomic_fetch_add(&reserves[card].trims, 1);
		backings_look(card);
	}
	return result;
}

void graph_memory_after_fork_in_child(void)
{
	pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

	allocations_forget(&executables);
	atomic_store(&gate_line.allocating_graphs, 0);
	for (unsigned card = 0; card < GPUSHARE_MAX_CARDS; card++)
		reserves[card] = (struct reserve){0};
	making = unlocked; /* another thread may have held the lock */
}
