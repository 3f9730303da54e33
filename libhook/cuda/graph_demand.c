/* SPDX-License-Identifier: Apache-2.0
 *
 * Each allocation node has a fixed address, and nodes with disjoint lifetimes may share one. So the
 * addresses of a graph's nodes, each counted once, are the most that the driver can need; it needs
 * less if it backs several with the same memory.
 *
 * Allocation nodes are in the graph itself and in its child graphs, but not in the bodies of
 * conditional nodes (cuda.h, CUDA_CONDITIONAL_NODE_PARAMS).
 */
#include "graph_demand.h"

#include <stdlib.h>

#include "cards.h"

/* The granularity with which the driver backs memory (CU_MEM_ALLOC_GRANULARITY_MINIMUM of all cards
 * so far). */
#define PAGE_BYTES (UINT64_C(2) << 20)

/* A node that allocates or frees. */
struct range {
	unsigned card;
	bool frees;
	CUdeviceptr pointer;
	uint64_t begin, end; /* of an allocation */
};

struct ranges {
	struct range *ranges;
	size_t count, capacity;
};

static bool ranges_add(struct ranges *ranges, const struct range *range)
{
	if (ranges->count == ranges->capacity) {
		size_t capacity = ranges->capacity ? ranges->capacity * 2 : 16;
		struct range *grown = realloc(ranges->ranges, capacity * sizeof(*grown));
		if (!grown)
			return false;
		ranges->ranges = grown;
		ranges->capacity = capacity;
	}
	ranges->ranges[ranges->count++] = *range;
	return true;
}

/* An allocation on the host takes no memory of a card. */
static CUresult add_allocation(struct ranges *ranges, CUgraphNode node)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	struct range range = {.frees = false};
	CUresult result = REAL(cuGraphMemAllocNodeGetParams)(node, &parameters);

	if (result != CUDA_SUCCESS || location_is_host(&parameters.poolProps.location))
		return result;
	result = card_of_location(&range.card, &parameters.poolProps.location);
	if (result != CUDA_SUCCESS)
		return result;
	range.pointer = parameters.dptr;
	range.begin = parameters.dptr / PAGE_BYTES * PAGE_BYTES;
	range.end =
		(parameters.dptr + parameters.bytesize + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	return ranges_add(ranges, &range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_free(struct ranges *ranges, CUgraphNode node)
{
	struct range range = {.frees = true};
	CUresult result = REAL(cuGraphMemFreeNodeGetParams)(node, &range.pointer);

	if (result != CUDA_SUCCESS)
		return result;
	return ranges_add(ranges, &range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_graph(struct ranges *ranges, CUgraph graph);

static CUresult add_node(struct ranges *ranges, CUgraphNode node)
{
	CUgraphNodeType type;
	CUgraph child;
	CUresult result = REAL(cuGraphNodeGetType)(node, &type);

	if (result != CUDA_SUCCESS)
		return result;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return add_allocation(ranges, node);
	if (type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return add_free(ranges, node);
	if (type != CU_GRAPH_NODE_TYPE_GRAPH)
		return CUDA_SUCCESS;
	result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
	return result == CUDA_SUCCESS ? add_graph(ranges, child) : result;
}

static CUresult add_graph(struct ranges *ranges, CUgraph graph)
{
	size_t count = 0;
	CUresult result = REAL(cuGraphGetNodes)(graph, NULL, &count);

	if (result != CUDA_SUCCESS || count == 0)
		return result;
	CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
	if (!nodes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = REAL(cuGraphGetNodes)(graph, nodes, &count);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = add_node(ranges, nodes[i]);
	free(nodes);
	return result;
}

static int by_address(const void *a, const void *b)
{
	const struct range *one = a, *other = b;

	return (one->pointer > other->pointer) - (one->pointer < other->pointer);
}

static struct card_demand *card_demand(struct graph_demand *demand, unsigned card)
{
	for (unsigned i = 0; i < demand->card_count; i++)
		if (demand->cards[i].card == card)
			return &demand->cards[i];
	demand->cards[demand->card_count].card = card;
	return &demand->cards[demand->card_count++];
}

static void sum(struct graph_demand *demand, const struct ranges *ranges)
{
	uint64_t counted_to = 0;

	for (size_t i = 0; i < ranges->count; i++) {
		const struct range *range = &ranges->ranges[i];
		if (range->frees)
			continue;
		struct card_demand *on_card = card_demand(demand, range->card);
		uint64_t begin = range->begin > counted_to ? range->begin : counted_to;
		uint64_t bytes = range->end - range->begin;
		if (range->end > begin)
			on_card->most += range->end - begin;
		if (range->end > counted_to)
			counted_to = range->end;
		if (bytes > on_card->least)
			on_card->least = bytes;
	}
}

/* Several nodes may share an address, each of which has to be freed. A graph may also free what
 * another one allocated. */
static void find_outliving(struct graph_demand *demand, const struct ranges *ranges)
{
	for (size_t i = 0, next; i < ranges->count; i = next) {
		const struct range *allocation = NULL;
		size_t allocated = 0;
		for (next = i; next < ranges->count &&
			       ranges->ranges[next].pointer == ranges->ranges[i].pointer;
			next++) {
			if (ranges->ranges[next].frees)
				continue;
			allocation = &ranges->ranges[next];
			allocated++;
		}
		if (allocated > next - i - allocated)
			card_demand(demand, allocation->card)->outlives = true;
	}
}

CUresult graph_demand(struct graph_demand *demand, CUgraph graph)
{
	struct ranges ranges = {0};
	CUresult result = add_graph(&ranges, graph);

	*demand = (struct graph_demand){0};
	if (result == CUDA_SUCCESS && ranges.count > 0) {
		qsort(ranges.ranges, ranges.count, sizeof(struct range), by_address);
		sum(demand, &ranges);
		find_outliving(demand, &ranges);
	}
	free(ranges.ranges);
	return result;
}
