/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of graphs: one piece of work, however many kernels it is, whose cost is learned for each
 * executable graph. An update that changes what it costs is learned as it is launched.
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
