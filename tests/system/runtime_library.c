/* SPDX-License-Identifier: Apache-2.0
 *
 * As much of NVIDIA's runtime library as tools/gpu/cudart.c calls, on the driver. NVIDIA's own does
 * not run on a simulated driver.
 */
#include "cuda_driver.h"
static int began(void)
{
	CUcontext context;
	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}
int cudaMemGetInfo(size_t *available, size_t *total)
{
	return began() || cuMemGetInfo_v2(available, total);
}
int cudaMalloc(void **at, size_t bytes)
{
	return cuMemAlloc_v2((CUdeviceptr *)at, bytes);
}
int cudaMemset(void *at, int value, size_t bytes)
{
	return cuMemsetD8_v2((CUdeviceptr)at, value, bytes);
}
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	return kind == 1 ? cuMemcpyHtoD_v2((CUdeviceptr)to, from, bytes)
			 : cuMemcpyDtoH_v2(to, (CUdeviceptr)from, bytes);
}
const char *cudaGetErrorName(int error)
{
	return error ? "cudaError" : "cudaSuccess";
}
const char *cudaGetErrorString(int error)
{
	return error == 2 ? "out of memory" : "another error";
}
