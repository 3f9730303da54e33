/* SPDX-License-Identifier: Apache-2.0
 *
 * Creation of executable graphs: what the graph's nodes may allocate is recorded with each.
 */
#include "graph_memory.h"

/* cuda.h, CUgraphInstantiateResult */
#define INSTANTIATE_ERROR 1

static CUresult noted(CUresult result, const CUgraphExec *instance, struct graph_demand *demand)
{
	if (result != CUDA_SUCCESS || demand->card_count == 0)
		return result;
	result = graph_note(*instance, demand);
	if (result != CUDA_SUCCESS)
		REAL(cuGraphExecDestroy)(*instance);
	return result;
}

#define INSTANTIATE(symbol, parameters, ...)                                                       \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		struct graph_demand demand;                                                        \
		CUresult result = graph_demand(&demand, graph);                                    \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		return noted(REAL(symbol)(instance, graph, __VA_ARGS__), instance, &demand);       \
	}

#define WITH_LOG                                                                                   \
	(CUgraphExec * instance, CUgraph graph, CUgraphNode * error_node, char *log,               \
		size_t log_bytes)
INSTANTIATE(cuGraphInstantiate, WITH_LOG, error_node, log, log_bytes)
INSTANTIATE(cuGraphInstantiate_v2, WITH_LOG, error_node, log, log_bytes)
INSTANTIATE(cuGraphInstantiateWithFlags,
	(CUgraphExec * instance, CUgraph graph, unsigned long long flags), flags)

/* The upload is done afterwards and by this library, because it takes memory. */
static CUresult upload(CUgraphExec instance, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
	CUresult (*real)(CUgraphExec instance, CUstream stream), enum null_stream null_stream)
{
	CUresult result =
		graph_start(GRAPH_UPLOAD, real, instance, parameters->hUploadStream, null_stream);

	if (result != CUDA_SUCCESS) {
		cuGraphExecDestroy(instance);
		parameters->result_out = INSTANTIATE_ERROR;
	}
	return result;
}

#define INSTANTIATE_WITH_PARAMETERS(symbol, upload_symbol, null_stream)                            \
	CUDA(symbol, (CUgraphExec * instance, CUgraph graph,                                       \
			     CUDA_GRAPH_INSTANTIATE_PARAMS * parameters))                          \
	{                                                                                          \
		struct graph_demand demand = {0};                                                  \
		CUresult result = graph_demand(&demand, graph);                                    \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		if (!parameters || demand.card_count == 0 ||                                       \
			!(parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))                 \
			return noted(                                                              \
				REAL(symbol)(instance, graph, parameters), instance, &demand);     \
		parameters->flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;                \
		result = noted(REAL(symbol)(instance, graph, parameters), instance, &demand);      \
		parameters->flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;                           \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		return upload(*instance, parameters, REAL(upload_symbol), null_stream);            \
	}

INSTANTIATE_WITH_PARAMETERS(cuGraphInstantiateWithParams, cuGraphUpload, NULL_IS_LEGACY)
INSTANTIATE_WITH_PARAMETERS(
	cuGraphInstantiateWithParams_ptsz, cuGraphUpload_ptsz, NULL_IS_PER_THREAD)

static CUresult updated(CUresult result, CUgraphExec instance, CUgraph graph)
{
	struct graph_demand demand;

	if (result == CUDA_SUCCESS && graph_demand(&demand, graph) == CUDA_SUCCESS &&
		demand.card_count > 0)
		return graph_note(instance, &demand);
	return result;
}

CUDA(cuGraphExecUpdate,
	(CUgraphExec instance, CUgraph graph, CUgraphNode *error_node, int *update_result))
{
	CUresult result = REAL(cuGraphExecUpdate)(instance, graph, error_node, update_result);

	return updated(result, instance, graph);
}

CUDA(cuGraphExecUpdate_v2,
	(CUgraphExec instance, CUgraph graph, CUgraphExecUpdateResultInfo *update_result))
{
	return updated(REAL(cuGraphExecUpdate_v2)(instance, graph, update_result), instance, graph);
}

#define UPLOAD(symbol, null_stream)                                                                \
	CUDA(symbol, (CUgraphExec graph, CUstream stream))                                         \
	{                                                                                          \
		return graph_start(GRAPH_UPLOAD, REAL(symbol), graph, stream, null_stream);        \
	}

UPLOAD(cuGraphUpload, NULL_IS_LEGACY)
UPLOAD(cuGraphUpload_ptsz, NULL_IS_PER_THREAD)
