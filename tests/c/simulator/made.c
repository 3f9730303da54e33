/* SPDX-License-Identifier: Apache-2.0 */
#include "made.h"

#include "expect.h"

CUcontext made_context(void)
{
	CUcontext context;

	device_file_make();
	EXPECT_EQUAL(cuInit(0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	return context;
}

size_t free_bytes(void)
{
	size_t free_, total;

	EXPECT_EQUAL(cuMemGetInfo_v2(&free_, &total), CUDA_SUCCESS);
	EXPECT_EQUAL(total, CARD_BYTES - RESERVED_BYTES);
	return free_;
}

CUkernel timed_kernel(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
				  ".visible .entry spin(.param .u64 duration_ns) { ret; }\n";
	static CUkernel kernel;
	CUlibrary library;

	if (!kernel) {
		EXPECT_EQUAL(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0),
			CUDA_SUCCESS);
		EXPECT_EQUAL(cuLibraryGetKernel(&kernel, library, "spin"), CUDA_SUCCESS);
	}
	return kernel;
}

CUresult launch_ns(CUstream stream, uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return cuLaunchKernel(
		(CUfunction)(void *)timed_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}
