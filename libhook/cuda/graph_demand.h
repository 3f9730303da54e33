/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory the allocation nodes of a graph may take.
 */
#ifndef GPUSHARE_GRAPH_DEMAND_H
#define GPUSHARE_GRAPH_DEMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "filter.h"
#include "gpushare_abi.h"

/* On one card, in bytes. */
struct card_demand {
	unsigned card;
	uint64_t most;	/* the addresses of all nodes: no more is ever behind them */
	uint64_t least; /* the largest node */
	bool outlives;	/* some of it the graph does not free: a launch takes that for longer */
};

struct graph_demand {
	unsigned card_count; /* 0: no node allocates */
	struct card_demand cards[GPUSHARE_MAX_CARDS];
};

/* Look through `graph`. CUDA_ERROR_OUT_OF_MEMORY: of the host's; or why a node's device cannot be
 * used. */
CUresult graph_demand(struct graph_demand *demand, CUgraph graph);

#endif
