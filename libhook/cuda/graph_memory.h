/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that a device keeps for graphs: charged as the driver says how much that is, and
 * reserved before an executable graph that allocates is uploaded or launched. graph_instantiate.c
 * is where executables come from.
 */
#ifndef GPUSHARE_GRAPH_MEMORY_H
#define GPUSHARE_GRAPH_MEMORY_H

#include <stdatomic.h>

#include "filter.h"
#include "graph_demand.h"
#include "stream.h"

/* The executables that allocate: of others nothing is known, and nothing need be. */
#pragma GCC visibility push(hidden)
extern _Atomic unsigned graphs_allocating;
#pragma GCC visibility pop

/* Know `graph` by what its nodes may take; again after an update. */
CUresult graph_note(CUgraphExec graph, const struct graph_demand *demand);

enum graph_start { GRAPH_UPLOAD, GRAPH_LAUNCH };

/* Have `real`, the driver's upload or launch, act on `graph` if the quota has room for what the
 * graph allocates. */
CUresult graph_start(enum graph_start start, CUresult (*real)(CUgraphExec graph, CUstream stream),
	CUgraphExec graph, CUstream stream, enum null_stream null_stream);

void graph_memory_after_fork_in_child(void);

#endif
