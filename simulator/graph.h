/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: nodes with their dependencies (graph.c, graph_node.c), instances of them (graph_exec.c),
 * and the memory that their allocation nodes take (graph_memory.h). A graph is used by one thread
 * at a time, as the real driver requires.
 */
#ifndef GPUSHARE_SIMULATOR_GRAPH_H
#define GPUSHARE_SIMULATOR_GRAPH_H

#include "driver.h"

struct allocation;
struct kernel_call;
struct footprint;

/* The content of a node of some type. */
union content {
	uint64_t duration_ns; /* of a kernel, before the time scale */
	CUDA_MEMCPY3D copy;
	CUDA_MEMSET_NODE_PARAMS fill;
	CUDA_HOST_NODE_PARAMS host;
	CUevent event;
};

struct CUgraphNode_st {
	uint32_t kind;
	CUgraphNodeType type;
	CUgraph graph;
	union content content;
	CUgraph child;		       /* of a child graph node: its own */
	struct kernel_call *call;      /* of a kernel node that was added by its parameters */
	struct allocation *allocation; /* of an allocation node or a free node */
	CUgraphNode *dependencies;
	size_t dependency_count;
	size_t step; /* while an instance is created: its last step; otherwise scratch */
	CUgraphNode next;
};

struct CUgraph_st {
	uint32_t kind;
	bool owned;	/* by a node of another graph */
	bool allocates; /* has allocation or free nodes, or a child that has */
	CUgraphNode nodes, last;
	size_t node_count;
};

/* One node of an instance at the time of instantiation, children unfolded. */
struct step {
	CUgraphNodeType type;
	union content content;
	CUgraphNode node; /* its origin; only compared */
	struct allocation *allocation;
	uint64_t *after; /* the steps that it depends on, one bit each; null if nothing allocates */
};

struct CUgraphExec_st {
	uint32_t kind;
	unsigned long long flags;
	size_t step_count;
	struct step *steps;
	uint64_t *order;	     /* the steps' `after` */
	struct footprint *footprint; /* null: allocates nothing */
};

bool graph_valid(CUgraph graph);
bool node_valid(CUgraphNode node);

/* An empty node of `type`, at the end of the graph. */
CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
	CUgraphNodeType type);
/* Remove the node that was added last. */
void node_withdraw(CUgraphNode node);
CUresult graph_new(CUgraph *graph);
/* A copy with nodes of its own; a graph that allocates cannot be copied. */
CUresult graph_copy(CUgraph *copy, CUgraph original);
void graph_free(CUgraph graph);

/* A kernel node's own parameters. */
CUresult kernel_call_copy(CUgraphNode copy, CUgraphNode original);
void kernel_call_free(struct kernel_call *call);

/* The nodes of a graph as steps; what they allocate is taken when it is uploaded. */
CUresult instance_new(CUgraphExec *result, CUgraph graph, unsigned long long flags);
void instance_free(CUgraphExec instance);

/* An allocation is held by its nodes, by their instances, and while it is live. */
void allocation_leave(CUgraphNode node);
/* At their steps: the memory becomes usable, or unusable. */
void allocation_begin(struct allocation *allocation);
void allocation_end(struct allocation *allocation);

/* The memory that the instance's allocations need; *footprint stays null if there are none. */
CUresult footprint_new(struct footprint **footprint, const struct CUgraphExec_st *instance);
void footprint_free(struct footprint *footprint);
/* Provide the memory for a run on the stream; what the reserve lacks is taken from the card. */
CUresult footprint_upload(struct footprint *footprint, CUstream stream);
/* The same, and what the instance leaves allocated is live: the last run's must be free, unless
 * `auto_free`. */
CUresult footprint_launch(struct footprint *footprint, CUstream stream, bool auto_free);

/* Whether `step` comes after `other` in every order that the dependencies allow. */
static inline bool step_after(const struct step *step, size_t other)
{
	return step->after[other / 64] >> other % 64 & 1;
}

#endif
