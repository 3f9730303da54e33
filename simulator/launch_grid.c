/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the first form, deprecated and still exported: the block size and the kernel's
 * arguments are stored with the function. And launches on several cards at once.
 */
#include "cuda_work.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

#define ARGUMENT_BYTES_MOST 4096

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
	REQUIRE_DRIVER();
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(x > 0 && y > 0 && z > 0, CUDA_ERROR_INVALID_VALUE);
	function->block[0] = (unsigned int)x;
	function->block[1] = (unsigned int)y;
	function->block[2] = (unsigned int)z;
	return CUDA_SUCCESS;
}

CUresult cuParamSetSize(CUfunction function, unsigned int bytes)
{
	REQUIRE_DRIVER();
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(bytes <= ARGUMENT_BYTES_MOST, CUDA_ERROR_INVALID_VALUE);
	function->argument_bytes = bytes;
	return CUDA_SUCCESS;
}

CUresult cuParamSetv(CUfunction function, int offset, void *value, unsigned int bytes)
{
	REQUIRE_DRIVER();
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(offset >= 0 && bytes <= ARGUMENT_BYTES_MOST &&
			(unsigned int)offset <= ARGUMENT_BYTES_MOST - bytes && value,
		CUDA_ERROR_INVALID_VALUE);
	if (!function->arguments)
		function->arguments = calloc(1, ARGUMENT_BYTES_MOST);
	REQUIRE(function->arguments, CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(function->arguments + offset, value, bytes);
	return CUDA_SUCCESS;
}

static CUresult launch_grid(CUfunction function, int width, int height, CUstream stream)
{
	struct grid grid;

	REQUIRE_DRIVER();
	REQUIRE(function_valid(function), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(width > 0 && height > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(function->argument_bytes == 0 || function->arguments, CUDA_ERROR_INVALID_VALUE);
	grid = (struct grid){(unsigned int)width, (unsigned int)height, 1, function->block[0],
		function->block[1], function->block[2]};
	/* In the form of cuLaunchKernel's `extra`: one buffer, and its size. */
	void *extra[] = {LAUNCH_BUFFER, function->arguments, LAUNCH_BUFFER_BYTES,
		&function->argument_bytes, LAUNCH_END};
	return launch(function, &grid, stream, STREAM_LEGACY, NULL, extra);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	return launch_grid(function, width, height, stream);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return launch_grid(function, width, height, NULL);
}

CUresult cuLaunch(CUfunction function)
{
	return launch_grid(function, 1, 1, NULL);
}

CUresult cuLaunchCooperativeKernelMultiDevice(
	CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	REQUIRE_DRIVER();
	REQUIRE(launches && count > 0 && count <= device_count() && flags <= 3,
		CUDA_ERROR_INVALID_VALUE);
	for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const CUDA_LAUNCH_PARAMS *one = &launches[i];
		const struct grid grid = {one->gridDimX, one->gridDimY, one->gridDimZ,
			one->blockDimX, one->blockDimY, one->blockDimZ};

		result = launch(
			one->function, &grid, one->hStream, STREAM_LEGACY, one->kernelParams, NULL);
	}
	return result;
}
