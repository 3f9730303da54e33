/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates an instance from another graph: the same nodes in the same order, with other parameters.
 * Memory of a graph that allocates does not change, so such an instance cannot be updated.
 */
#include "graph.h"

#include <string.h>

/* cuda.h, CUgraphExecUpdateResult */
enum { UPDATED = 0, FAILED = 1, TOPOLOGY_CHANGED = 2, TYPE_CHANGED = 3, NOT_SUPPORTED = 6 };

struct CUgraphExecUpdateResultInfo {
	int result;
	CUgraphNode node, from;
};

/* Whether the two have the same steps in the same order, otherwise the reason and the node. */
static int compare(const struct CUgraphExec_st *instance, const struct CUgraphExec_st *wanted,
	CUgraphNode *where)
{
	*where = NULL;
	if (instance->step_count != wanted->step_count)
		return TOPOLOGY_CHANGED;
	for (size_t i = 0; i < instance->step_count; i++) {
		if (instance->steps[i].type == wanted->steps[i].type)
			continue;
		*where = wanted->steps[i].node;
		return TYPE_CHANGED;
	}
	return UPDATED;
}

static int update(CUgraphExec instance, CUgraph graph, CUgraphNode *where)
{
	CUgraphExec wanted;
	int result;

	*where = NULL;
	if (instance->footprint || graph->allocates)
		return NOT_SUPPORTED;
	if (instance_new(&wanted, graph, instance->flags) != CUDA_SUCCESS)
		return FAILED;
	result = compare(instance, wanted, where);
	for (size_t i = 0; i < wanted->step_count && result == UPDATED; i++)
		instance->steps[i].content = wanted->steps[i].content;
	instance_free(wanted);
	return result;
}

CUresult cuGraphExecUpdate_v2(
	CUgraphExec instance, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	CUgraphNode where;
	int result;

	REQUIRE_DRIVER();
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE && graph_valid(graph) && info,
		CUDA_ERROR_INVALID_VALUE);
	result = update(instance, graph, &where);
	*info = (CUgraphExecUpdateResultInfo){.result = result, .node = where};
	return result == UPDATED ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecUpdate(
	CUgraphExec instance, CUgraph graph, CUgraphNode *error_node, int *update_result)
{
	CUgraphExecUpdateResultInfo info;
	CUresult result;

	REQUIRE(error_node && update_result, CUDA_ERROR_INVALID_VALUE);
	info = (CUgraphExecUpdateResultInfo){.result = FAILED};
	result = cuGraphExecUpdate_v2(instance, graph, &info);
	*error_node = info.node;
	*update_result = info.result;
	return result;
}
