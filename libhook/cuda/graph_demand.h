/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory the allocation nodes of a graph may take.
 */
#ifndef GPUSHARE_GRAPH_DEMAND_H
#define GPUSHARE_GRAPH_DEMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose.h"
#include "gpushare_abi.h"

/* On one card, in bytes. */
struct card_demand {
	unsigned card;
	uint64_t most;	/* the addresses of all nodes: the driver never backs more than these */
	uint64_t least; /* the largest node */
	bool outlives;	/* the graph does not free some of it: a launch takes that memory for longer
			 */
};

struct graph_demand {
	unsigned card_count; /* 0: no node allocates */
	struct card_demand cards[GPUSHARE_MAX_CARDS];
};

/* Examine `graph`. CUDA_ERROR_OUT_OF_MEMORY: out of host memory; or the error of a node's
 * device. */
CUresult graph_demand(struct graph_demand *demand, CUgraph graph);

#endif
