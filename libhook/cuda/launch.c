/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of kernels. Host functions of the program (cuLaunchHostFunc) are not work on a card.
 */
#include "cuda_work.h"
#include "submit.h"

#define THREADS(x, y, z, block_x, block_y, block_z)                                                \
	((uint64_t)(x) * (y) * (z) * (block_x) * (block_y) * (block_z))
#define KERNEL(threads) .kind = GATE_KERNEL, .what = function, .size = (threads)

#define GRID                                                                                       \
	CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,        \
		unsigned int block_x, unsigned int block_y, unsigned int block_z,                  \
		unsigned int shared_bytes, CUstream stream, void **parameters
#define GRID_THREADS THREADS(grid_x, grid_y, grid_z, block_x, block_y, block_z)

SUBMIT_PTSZ(cuLaunchKernel, (GRID, void **extra),
	(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
		parameters, extra),
	KERNEL(GRID_THREADS), .stream = stream)
SUBMIT_PTSZ(cuLaunchCooperativeKernel, (GRID),
	(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
		parameters),
	KERNEL(GRID_THREADS), .stream = stream)

/* Without a configuration, the driver refuses it. */
static uint64_t threads_of(const CUlaunchConfig *config)
{
	return config ? THREADS(config->gridDimX, config->gridDimY, config->gridDimZ,
				config->blockDimX, config->blockDimY, config->blockDimZ)
		      : 0;
}

SUBMIT_PTSZ(cuLaunchKernelEx,
	(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
	(config, function, parameters, extra), KERNEL(threads_of(config)),
	.stream = config ? config->hStream : NULL)

/* The first form: the block size was set on the function before. */
SUBMIT(cuLaunch, NULL_IS_LEGACY, (CUfunction function), (function), KERNEL(1))
SUBMIT(cuLaunchGrid, NULL_IS_LEGACY, (CUfunction function, int width, int height),
	(function, width, height), KERNEL((uint64_t)width *(uint64_t)height))
SUBMIT(cuLaunchGridAsync, NULL_IS_LEGACY,
	(CUfunction function, int width, int height, CUstream stream),
	(function, width, height, stream), KERNEL((uint64_t)width *(uint64_t)height),
	.stream = stream)

/* One launch for each of several cards, which the driver starts together: each passes the gate of
 * its card, in the order of the list. The waits for several cards follow one another. */
static unsigned enter_all(
	struct gate_work *works, bool *counted, const CUDA_LAUNCH_PARAMS *launches, unsigned count)
{
	unsigned entered = 0;

	for (; launches && entered < count && entered < GPUSHARE_MAX_CARDS; entered++) {
		const CUDA_LAUNCH_PARAMS *launch = &launches[entered];
		works[entered] = (struct gate_work){.kind = GATE_KERNEL,
			.what = launch->function,
			.size = THREADS(launch->gridDimX, launch->gridDimY, launch->gridDimZ,
				launch->blockDimX, launch->blockDimY, launch->blockDimZ),
			.stream = launch->hStream};
		counted[entered] = submit_enter(&works[entered]);
	}
	return entered;
}

CUDA(cuLaunchCooperativeKernelMultiDevice,
	(CUDA_LAUNCH_PARAMS * launches, unsigned int count, unsigned int flags))
{
	struct gate_work works[GPUSHARE_MAX_CARDS];
	bool counted[GPUSHARE_MAX_CARDS];

	if (gate_is_open())
		return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
	const unsigned entered = enter_all(works, counted, launches, count);
	const CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
	for (unsigned i = 0; i < entered; i++)
		submit_leave(&works[i], counted[i], result);
	return result;
}
