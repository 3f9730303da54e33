/* SPDX-License-Identifier: Apache-2.0
 *
 * What starts work: past the gate, then a tail call, but for graphs that allocate.
 */
#include "cards.h"
#include "filter.h"
#include "graph_memory.h"
#include "share/gate.h"

#define LAUNCH(symbol, parameters, ...)                                                            \
	CUDA(symbol, parameters)                                                                   \
	{                                                                                          \
		struct gate_work work = {.kind = GATE_KERNEL, .what = function, .stream = STREAM}; \
		if (gate_is_open() || card_current(&work.card) != CUDA_SUCCESS ||                  \
			!gate_enter(&work))                                                        \
			return REAL(symbol)(__VA_ARGS__);                                          \
		CUresult result = REAL(symbol)(__VA_ARGS__);                                       \
		gate_leave(&work, result == CUDA_SUCCESS);                                         \
		return result;                                                                     \
	}
#define STREAM stream

#define GRID                                                                                       \
	CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,        \
		unsigned int block_x, unsigned int block_y, unsigned int block_z,                  \
		unsigned int shared_bytes, CUstream stream, void **parameters

LAUNCH(cuLaunchKernel, (GRID, void **extra), function, grid_x, grid_y, grid_z, block_x, block_y,
	block_z, shared_bytes, stream, parameters, extra)
LAUNCH(cuLaunchKernel_ptsz, (GRID, void **extra), function, grid_x, grid_y, grid_z, block_x,
	block_y, block_z, shared_bytes, stream, parameters, extra)
LAUNCH(cuLaunchCooperativeKernel, (GRID), function, grid_x, grid_y, grid_z, block_x, block_y,
	block_z, shared_bytes, stream, parameters)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (GRID), function, grid_x, grid_y, grid_z, block_x, block_y,
	block_z, shared_bytes, stream, parameters)
#undef STREAM
#define STREAM config->hStream
LAUNCH(cuLaunchKernelEx,
	(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
	config, function, parameters, extra)
LAUNCH(cuLaunchKernelEx_ptsz,
	(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
	config, function, parameters, extra)
/* Most graphs allocate nothing. */
#define LAUNCH_GRAPH(symbol, null_stream)                                                          \
	CUDA(symbol, (CUgraphExec graph, CUstream stream))                                         \
	{                                                                                          \
		if (__builtin_expect(                                                              \
			    atomic_load_explicit(&graphs_allocating, memory_order_relaxed) == 0,   \
			    1))                                                                    \
			return REAL(symbol)(graph, stream);                                        \
		return graph_start(GRAPH_LAUNCH, REAL(symbol), graph, stream, null_stream);        \
	}

LAUNCH_GRAPH(cuGraphLaunch, NULL_IS_LEGACY)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, NULL_IS_PER_THREAD)
