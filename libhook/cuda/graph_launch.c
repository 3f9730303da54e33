/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of graphs: one piece of work, however many kernels it is, whose cost is learned for each
 * executable graph. What cuGraphExecUpdate and cuGraphExec*SetParams change is mostly not what it
 * costs, so nothing is forgotten then: a launch that takes longer moves the estimate towards
 * itself, by half the difference at the most, and a few launches later it is right. A destroyed one
 * is forgotten (graph_memory.c).
 */
#include "graph_memory.h"
#include "submit.h"

/* Most graphs allocate nothing. */
#define START(symbol, graph, stream, null_stream)                                                  \
	(__builtin_expect(atomic_load_explicit(&graphs_allocating, memory_order_relaxed) == 0, 1)  \
			? REAL(symbol)(graph, stream)                                              \
			: graph_start(GRAPH_LAUNCH, REAL(symbol), graph, stream, null_stream))

#define LAUNCH_GRAPH(symbol, null_stream)                                                          \
	CUDA(symbol, (CUgraphExec graph, CUstream stream))                                         \
	{                                                                                          \
		if (gate_is_open())                                                                \
			return START(symbol, graph, stream, null_stream);                          \
		struct gate_work work = {.kind = GATE_GRAPH,                                       \
			.what = graph,                                                             \
			.stream = stream,                                                          \
			.per_thread = (null_stream) == NULL_IS_PER_THREAD};                        \
		const bool counted = submit_enter(&work);                                          \
		return submit_leave(&work, counted, START(symbol, graph, stream, null_stream));    \
	}

LAUNCH_GRAPH(cuGraphLaunch, NULL_IS_LEGACY)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, NULL_IS_PER_THREAD)
