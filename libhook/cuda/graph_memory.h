/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that a device retains for graphs: charged as the driver reports it, and reserved
 * before an executable graph that allocates is uploaded or launched. graph_instantiate.c is where
 * executables are created.
 */
#ifndef GPUSHARE_GRAPH_MEMORY_H
#define GPUSHARE_GRAPH_MEMORY_H

#include "interpose.h"
#include "graph_demand.h"
#include "stream.h"

/* Record what the nodes of `graph` may take; again after an update. */
CUresult graph_note(CUgraphExec graph, const struct graph_demand *demand);

enum graph_start { GRAPH_UPLOAD, GRAPH_LAUNCH };

/* Call `real`, the driver's upload or launch, on `graph` if the quota has room for what the graph
 * allocates. */
CUresult graph_start(enum graph_start start, CUresult (*real)(CUgraphExec graph, CUstream stream),
	CUgraphExec graph, CUstream stream, enum null_stream null_stream);

void graph_memory_after_fork_in_child(void);

#endif
