/* SPDX-License-Identifier: Apache-2.0
 *
 * A program whose kernel faults: "ready" once it has a context, then a fault for each line on
 * stdin. Its output has the form of gpushare-probe's.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const char PTX[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
			  ".visible .entry trap() { trap; }\n";

#define CALL(name, types, ...)                                                                     \
	do {                                                                                       \
		int(*function) types = (int(*) types)(void (*)(void))dlsym(cuda, #name);           \
		int code = function(__VA_ARGS__);                                                  \
		if (code) {                                                                        \
			fprintf(stderr, "%s: %d\n", #name, code);                                  \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *kernel;
	char line[64];

	if (!cuda)
		return 1;
	CALL(cuInit, (unsigned), 0);
	CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
	CALL(cuCtxSetCurrent, (void *), context);
	CALL(cuModuleLoadData, (void **, const void *), &module, PTX);
	CALL(cuModuleGetFunction, (void **, void *, const char *), &kernel, module, "trap");
	puts("{\"event\": \"ready\"}");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			unsigned, void *, void **, void **) = (int (*)(void *, unsigned, unsigned,
			unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
			void **))(void (*)(void))dlsym(cuda, "cuLaunchKernel");
		int (*wait)(void) = (int (*)(void))(void (*)(void))dlsym(cuda, "cuCtxSynchronize");

		launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		printf("{\"event\": \"trap\", \"code\": %d}\n", wait());
		fflush(stdout);
	}
	return 0;
}
