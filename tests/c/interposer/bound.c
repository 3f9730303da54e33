/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of CUDA 12 that the loader binds to functions that an 11.8 driver lacks. Prints what
 * they return, and what cuGetProcAddress_v2 finds.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "cuda_driver.h"

static void ask(const char *name)
{
	CUdriverProcAddressQueryResult status = 7;
	void *function = NULL;
	CUresult result = cuGetProcAddress_v2(name, &function, 13000, 0, &status);
	Dl_info info;

	printf("%d %d", (int)result, (int)status);
	if (function && dladdr(function, &info))
		printf(" %s", info.dli_sname);
	puts("");
}

int main(void)
{
	CUgreenCtx context;
	void *found = dlsym(RTLD_DEFAULT, "cuGreenCtxCreate");

	cuInit(0);
	printf("%d %s\n", (int)cuGreenCtxCreate(&context, NULL, 0, 0),
		found ? "present" : "absent");
	ask("cuMemAlloc");
	ask("cuGreenCtxCreate");
	return 0;
}
