/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches. A kernel computes nothing and takes card time: the value of its first parameter if that
 * is a .u64 named *duration_ns, otherwise by its grid, WAVE_NS for every time that the grid's
 * threads fill the card. After a kernel named trap, all calls fail, as after a PTX trap.
 */
#include "launch.h"

#include "mps.h"

#include <string.h>

#define WAVE_NS UINT64_C(2000)

bool function_valid(CUfunction function)
{
	return function && function->kind == OBJECT_FUNCTION;
}

static bool grid_valid(const struct grid *grid)
{
	return grid->x && grid->y && grid->z && grid->block_x && grid->block_y && grid->block_z &&
	       grid->x <= 2147483647u && grid->y <= 65535 && grid->z <= 65535 &&
	       grid->block_x <= 1024 && grid->block_y <= 1024 && grid->block_z <= 64 &&
	       grid->block_x * grid->block_y * grid->block_z <= 1024;
}

static uint64_t waves(const struct grid *grid, const struct sim_profile *profile)
{
	double threads =
		(double)grid->x * grid->y * grid->z * grid->block_x * grid->block_y * grid->block_z;
	double resident =
		(double)profile->multiprocessors * (double)profile->threads_per_multiprocessor;

	return resident > 0 ? (uint64_t)(threads / resident) + 1 : 1;
}

static const void *first_parameter(void **parameters, void **extra)
{
	if (parameters)
		return parameters[0];
	for (; extra && extra[0] != LAUNCH_END; extra += 2) {
		if (extra[0] == LAUNCH_BUFFER)
			return extra[1];
	}
	return NULL;
}

CUresult launch_duration(CUfunction function, const struct grid *grid, void **parameters,
	void **extra, CUcontext context, uint64_t *duration_ns)
{
	CUresult result;

	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(grid_valid(grid), CUDA_ERROR_INVALID_VALUE);
	result = module_place(function->module, context);
	if (result != CUDA_SUCCESS)
		return result;
	if (function->timed) {
		const void *value = first_parameter(parameters, extra);

		REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
		memcpy(duration_ns, value, sizeof(*duration_ns));
		return CUDA_SUCCESS;
	}
	REQUIRE(parameters || extra || function->kernel->parameter_count == 0,
		CUDA_ERROR_INVALID_VALUE);
	*duration_ns = WAVE_NS * waves(grid, card_profile(context->card));
	return CUDA_SUCCESS;
}

CUresult launch(CUfunction function, const struct grid *grid, CUstream handle,
	enum stream_flavour flavour, void **parameters, void **extra)
{
	IN_CALL();
	CUstream stream;
	uint64_t duration;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status == CUDA_SUCCESS)
		status = launch_duration(
			function, grid, parameters, extra, stream->context, &duration);
	if (status != CUDA_SUCCESS)
		return status;
	if (stream_captures(stream))
		return capture_work(stream, CU_GRAPH_NODE_TYPE_KERNEL, duration_scaled(duration));
	queue_submit(stream, duration_scaled(duration));
	if (function->traps)
		mps_fault();
	return CUDA_SUCCESS;
}

#define LAUNCH_KERNEL(name, flavour)                                                               \
	CUresult name(CUfunction function, unsigned int grid_x, unsigned int grid_y,               \
		unsigned int grid_z, unsigned int block_x, unsigned int block_y,                   \
		unsigned int block_z, unsigned int shared_bytes, CUstream stream,                  \
		void **parameters, void **extra)                                                   \
	{                                                                                          \
		const struct grid grid = {grid_x, grid_y, grid_z, block_x, block_y, block_z};      \
                                                                                                   \
		(void)shared_bytes;                                                                \
		return launch(function, &grid, stream, flavour, parameters, extra);                \
	}

#define LAUNCH_COOPERATIVE(name, flavour)                                                          \
	CUresult name(CUfunction function, unsigned int grid_x, unsigned int grid_y,               \
		unsigned int grid_z, unsigned int block_x, unsigned int block_y,                   \
		unsigned int block_z, unsigned int shared_bytes, CUstream stream,                  \
		void **parameters)                                                                 \
	{                                                                                          \
		const struct grid grid = {grid_x, grid_y, grid_z, block_x, block_y, block_z};      \
                                                                                                   \
		(void)shared_bytes;                                                                \
		return launch(function, &grid, stream, flavour, parameters, NULL);                 \
	}

#define LAUNCH_EX(name, flavour)                                                                   \
	CUresult name(const CUlaunchConfig *config, CUfunction function, void **parameters,        \
		void **extra)                                                                      \
	{                                                                                          \
		struct grid grid;                                                                  \
                                                                                                   \
		REQUIRE(config, CUDA_ERROR_INVALID_VALUE);                                         \
		grid = (struct grid){config->gridDimX, config->gridDimY, config->gridDimZ,         \
			config->blockDimX, config->blockDimY, config->blockDimZ};                  \
		return launch(function, &grid, config->hStream, flavour, parameters, extra);       \
	}

LAUNCH_KERNEL(cuLaunchKernel, STREAM_LEGACY)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, STREAM_PER_THREAD)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, STREAM_LEGACY)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, STREAM_PER_THREAD)
LAUNCH_EX(cuLaunchKernelEx, STREAM_LEGACY)
LAUNCH_EX(cuLaunchKernelEx_ptsz, STREAM_PER_THREAD)
