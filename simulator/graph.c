/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs and the order of their nodes. A node depends only on older ones, so the nodes can run in
 * the order in which they were added.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

bool graph_valid(CUgraph graph)
{
	return graph && graph->kind == OBJECT_GRAPH;
}

bool node_valid(CUgraphNode node)
{
	return node && node->kind == OBJECT_NODE;
}

static bool dependencies_valid(CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	if (count > 0 && !dependencies)
		return false;
	for (size_t i = 0; i < count; i++) {
		if (!node_valid(dependencies[i]) || dependencies[i]->graph != graph)
			return false;
	}
	return true;
}

CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
	CUgraphNodeType type)
{
	CUgraphNode made;

	REQUIRE(node && graph_valid(graph), CUDA_ERROR_INVALID_VALUE);
	REQUIRE(dependencies_valid(graph, dependencies, count), CUDA_ERROR_INVALID_VALUE);
	made = calloc(1, sizeof(*made));
	if (made && count > 0)
		made->dependencies = malloc(count * sizeof(*dependencies));
	if (!made || (count > 0 && !made->dependencies)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (count > 0)
		memcpy(made->dependencies, dependencies, count * sizeof(*dependencies));
	made->kind = OBJECT_NODE;
	made->type = type;
	made->graph = graph;
	made->dependency_count = count;
	if (graph->last)
		graph->last->next = made;
	else
		graph->nodes = made;
	graph->last = made;
	graph->node_count++;
	*node = made;
	return CUDA_SUCCESS;
}

static void node_free(CUgraphNode node)
{
	if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->child)
		graph_free(node->child);
	if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		allocation_leave(node);
	kernel_call_free(node->call);
	node->kind = 0;
	free(node->dependencies);
	free(node);
}

static void unlink_node(CUgraphNode node)
{
	CUgraph graph = node->graph;
	CUgraphNode before = NULL;

	for (CUgraphNode other = graph->nodes; other && other != node; other = other->next)
		before = other;
	if (before)
		before->next = node->next;
	else
		graph->nodes = node->next;
	if (graph->last == node)
		graph->last = before;
	graph->node_count--;
}

void node_withdraw(CUgraphNode node)
{
	unlink_node(node);
	node_free(node);
}

static void forget_dependency(CUgraphNode node, CUgraphNode gone)
{
	size_t kept = 0;

	for (size_t i = 0; i < node->dependency_count; i++) {
		if (node->dependencies[i] != gone)
			node->dependencies[kept++] = node->dependencies[i];
	}
	node->dependency_count = kept;
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
	REQUIRE_DRIVER();
	REQUIRE(node_valid(node), CUDA_ERROR_INVALID_VALUE);
	/* The effects of allocation and free nodes on memory are connected. */
	REQUIRE(!node->graph->allocates, CUDA_ERROR_NOT_SUPPORTED);
	for (CUgraphNode other = node->graph->nodes; other; other = other->next)
		forget_dependency(other, node);
	node_withdraw(node);
	return CUDA_SUCCESS;
}

CUresult graph_new(CUgraph *graph)
{
	*graph = calloc(1, sizeof(**graph));
	REQUIRE(*graph, CUDA_ERROR_OUT_OF_MEMORY);
	(*graph)->kind = OBJECT_GRAPH;
	return CUDA_SUCCESS;
}

void graph_free(CUgraph graph)
{
	while (graph->nodes) {
		CUgraphNode node = graph->nodes;

		graph->nodes = node->next;
		node_free(node);
	}
	graph->kind = 0;
	free(graph);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	REQUIRE_DRIVER();
	REQUIRE(graph && flags == 0, CUDA_ERROR_INVALID_VALUE);
	return graph_new(graph);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph) && !graph->owned, CUDA_ERROR_INVALID_VALUE);
	graph_free(graph);
	return CUDA_SUCCESS;
}

static CUresult node_copy(CUgraph copy, CUgraphNode *copies, CUgraphNode original)
{
	CUgraphNode *made = &copies[original->step];
	CUresult result = node_add(made, copy, NULL, 0, original->type);
	size_t count = original->dependency_count;

	if (result != CUDA_SUCCESS)
		return result;
	if (original->type == CU_GRAPH_NODE_TYPE_GRAPH) {
		result = graph_copy(&(*made)->child, original->child);
		if (result == CUDA_SUCCESS)
			(*made)->child->owned = true;
	} else {
		(*made)->content = original->content;
		result = kernel_call_copy(*made, original);
	}
	if (count == 0 || result != CUDA_SUCCESS)
		return result;
	(*made)->dependencies = malloc(count * sizeof(*copies));
	REQUIRE((*made)->dependencies, CUDA_ERROR_OUT_OF_MEMORY);
	(*made)->dependency_count = count;
	for (size_t i = 0; i < count; i++)
		(*made)->dependencies[i] = copies[original->dependencies[i]->step];
	return CUDA_SUCCESS;
}

CUresult graph_copy(CUgraph *copy, CUgraph original)
{
	CUgraphNode *copies;
	CUresult result;
	size_t place = 0;

	*copy = NULL;
	REQUIRE(!original->allocates, CUDA_ERROR_NOT_SUPPORTED);
	result = graph_new(copy);
	copies = malloc((original->node_count + 1) * sizeof(*copies));
	if (!copies)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (CUgraphNode node = original->nodes; node && result == CUDA_SUCCESS;
		node = node->next) {
		node->step = place++;
		result = node_copy(*copy, copies, node);
	}
	free(copies);
	if (result != CUDA_SUCCESS && *copy) {
		graph_free(*copy);
		*copy = NULL;
	}
	return result;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph original)
{
	REQUIRE_DRIVER();
	REQUIRE(clone && graph_valid(original), CUDA_ERROR_INVALID_VALUE);
	return graph_copy(clone, original);
}

/* Handles as far as there is room; *count then returns their number. */
static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool only_roots)
{
	size_t room, found = 0;

	REQUIRE_DRIVER();
	REQUIRE(graph_valid(graph) && count, CUDA_ERROR_INVALID_VALUE);
	room = nodes ? *count : 0;
	for (CUgraphNode node = graph->nodes; node; node = node->next) {
		if (only_roots && node->dependency_count > 0)
			continue;
		if (found < room)
			nodes[found] = node;
		found++;
	}
	for (size_t i = found; i < room; i++)
		nodes[i] = NULL;
	if (!nodes || found < room)
		*count = found;
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	return list_nodes(graph, nodes, count, false);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	return list_nodes(graph, nodes, count, true);
}

CUresult cuGraphNodeGetDependencies_v2(
	CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *edges, size_t *count)
{
	size_t room;

	REQUIRE_DRIVER();
	REQUIRE(node_valid(node) && count, CUDA_ERROR_INVALID_VALUE);
	room = dependencies ? *count : 0;
	for (size_t i = 0; i < room; i++) {
		dependencies[i] = i < node->dependency_count ? node->dependencies[i] : NULL;
		if (edges)
			edges[i] = (CUgraphEdgeData){0};
	}
	if (!dependencies || node->dependency_count < room)
		*count = node->dependency_count;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count)
{
	return cuGraphNodeGetDependencies_v2(node, dependencies, NULL, count);
}
