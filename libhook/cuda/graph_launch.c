/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of graphs: one unit of work, however many kernels it has, whose duration is learned for
 * each executable graph. cuGraphExecUpdate and cuGraphExec*SetParams rarely change the duration, so
 * the estimate is kept: a launch that takes longer moves it, by half the difference at most, and
 * after a few launches it is right. The estimate of a destroyed graph is discarded
 * (graph_memory.c).
 */
#include "graph_memory.h"
#include "submit.h"

/* Most graphs allocate nothing, and most tenants are not evicted: nothing is on the stack then. */
static inline bool starts_at_once(void)
{
	return __builtin_expect(
		atomic_load_explicit(&gate_line.allocating_graphs, memory_order_relaxed) == 0 &&
			!is_evicted(),
		1);
}

#define START(symbol, graph, stream, null_stream)                                                  \
	(starts_at_once() ? REAL_AT_ONCE(symbol)(graph, stream)                                    \
			  : graph_start(GRAPH_LAUNCH, REAL(symbol), graph, stream, null_stream))

#define LAUNCH_GRAPH(symbol, null_stream)                                                          \
	__attribute__((noinline)) static CUresult symbol##_entered(                                \
		CUgraphExec graph, CUstream stream)                                                \
	{                                                                                          \
		struct gate_work work = {.kind = GATE_GRAPH,                                       \
			.what = graph,                                                             \
			.stream = stream,                                                          \
			.per_thread = (null_stream) == NULL_IS_PER_THREAD};                        \
		const bool counted = submit_enter(&work);                                          \
		return submit_leave(&work, counted, START(symbol, graph, stream, null_stream));    \
	}                                                                                          \
	__attribute__((noinline)) static CUresult symbol##_gated(                                  \
		CUgraphExec graph, CUstream stream)                                                \
	{                                                                                          \
		const struct gate_work work = {.kind = GATE_GRAPH,                                 \
			.what = graph,                                                             \
			.stream = stream,                                                          \
			.per_thread = (null_stream) == NULL_IS_PER_THREAD};                        \
		return starts_at_once() && submit_pass(&work)                                      \
			       ? REAL_AT_ONCE(symbol)(graph, stream)                               \
			       : symbol##_entered(graph, stream);                                  \
	}                                                                                          \
	CUDA(symbol, (CUgraphExec graph, CUstream stream))                                         \
	{                                                                                          \
		return gate_is_open() && starts_at_once() ? REAL_AT_ONCE(symbol)(graph, stream)    \
							  : symbol##_gated(graph, stream);         \
	}

LAUNCH_GRAPH(cuGraphLaunch, NULL_IS_LEGACY)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, NULL_IS_PER_THREAD)
