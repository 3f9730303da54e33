/* SPDX-License-Identifier: Apache-2.0
 *
 * A program linked with -lcuda: one function of each kind, so that each name must be there at link
 * time and bind at run time.
 */
#include "cuda_driver.h"

#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		CUresult result_ = (call);                                                         \
		const char *name_ = "?";                                                           \
		if (result_ != CUDA_SUCCESS) {                                                     \
			cuGetErrorName(result_, &name_);                                           \
			fprintf(stderr, "%s: %s\n", #call, name_);                                 \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

int main(void)
{
	char out[] = "there and back", in[sizeof(out)];
	CUdeviceptr pointer;
	CUcontext context;

	CHECK(cuInit(0));
	CHECK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(cuMemAlloc_v2(&pointer, sizeof(out)));
	CHECK(cuMemcpyHtoD_v2(pointer, out, sizeof(out)));
	CHECK(cuMemcpyDtoHAsync_v2_ptsz(in, pointer, sizeof(in), CU_STREAM_PER_THREAD));
	CHECK(cuCtxSynchronize());
	CHECK(cuMemFree_v2(pointer));
	CHECK(cuCtxDestroy_v2(context));
	printf("%s\n", in);
	return 0;
}
