/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: lists of nodes (graph.c), instances of them (graph_exec.c), and the memory that their
 * allocation nodes take (graph_memory.h). A graph is used by one thread at a time, as the real
 * driver requires.
 */
#ifndef GPUSHARE_SIMULATOR_GRAPH_H
#define GPUSHARE_SIMULATOR_GRAPH_H

#include "driver.h"

struct allocation;

struct CUgraphNode_st {
	uint32_t kind;
	CUgraphNodeType type;
	uint64_t duration_ns;	       /* card time of its work */
	CUgraph child;		       /* of a child graph node: its own */
	struct allocation *allocation; /* of an allocation node or a free node */
	CUgraphNode next;
};

struct CUgraph_st {
	uint32_t kind;
	bool owned; /* by a node of another graph */
	CUgraphNode nodes, last;
};

bool graph_valid(CUgraph graph);
CUresult graph_new(CUgraph *graph);
void graph_free(CUgraph graph);
/* A node at the end of the graph. */
CUresult node_add(CUgraphNode *node, CUgraph graph, CUgraphNodeType type, uint64_t duration_ns);

#endif
