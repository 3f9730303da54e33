/* SPDX-License-Identifier: Apache-2.0
 *
 * An instance that becomes as another graph would be: the same nodes in the same order, with other
 * parameters. Memory of a graph that allocates stays as it is, so such a one is not updated.
 */
#include "graph.h"

#include <string.h>

/* cuda.h, CUgraphExecUpdateResult */
enum { UPDATED = 0, FAILED = 1, TOPOLOGY_CHANGED = 2, TYPE_CHANGED = 3, NOT_SUPPORTED = 6 };

struct CUgraphExecUpdateResultInfo {
	int result;
	CUgraphNode node, from;
};

/* The two have the same steps in the same order, or why not, and at which node. */
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
	CUgraphExec instance, CUgraph graph, CUgraphExecUpdateResultInfo *told)
{
	CUgraphNode where;
	int result;

	REQUIRE_DRIVER();
	REQUIRE(instance && instance->kind == OBJECT_INSTANCE && graph_valid(graph) && told,
		CUDA_ERROR_INVALID_VALUE);
	result = update(instance, graph, &where);
	*told = (CUgraphExecUpdateResultInfo){.result = result, .node = where};
	return result == UPDATED ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecUpdate(
	CUgraphExec instance, CUgraph graph, CUgraphNode *error_node, int *update_result)
{
	CUgraphExecUpdateResultInfo told;
	CUresult result;

	REQUIRE(error_node && update_result, CUDA_ERROR_INVALID_VALUE);
	told = (CUgraphExecUpdateResultInfo){.result = FAILED};
	result = cuGraphExecUpdate_v2(instance, graph, &told);
	*error_node = told.node;
	*update_result = told.result;
	return result;
}
