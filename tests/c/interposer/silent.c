/* SPDX-License-Identifier: Apache-2.0
 *
 * Gets the driver, then lets the kernel kill it for whatever it asks but read, write and exit, and
 * allocates, frees and asks for memory.
 */
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda_driver.h"

#define CALLS 100000
#define LIVE 1024

static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemFree_v2) release;
static __typeof__(&cuMemGetInfo_v2) information;
static CUdeviceptr live[LIVE];

static int replace(unsigned which)
{
	size_t left, total;

	return release(live[which]) != CUDA_SUCCESS ||
	       allocate(&live[which], 512) != CUDA_SUCCESS ||
	       information(&left, &total) != CUDA_SUCCESS;
}

static void say(const char *text)
{
	if (write(STDOUT_FILENO, text, strlen(text)) < 0)
		syscall(SYS_exit, 2);
}

int main(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	__typeof__(&cuCtxCreate_v2) create;
	__typeof__(&cuInit) init;
	CUcontext context;
	unsigned drawn = 1;

	*(void **)&init = dlsym(library, "cuInit");
	*(void **)&create = dlsym(library, "cuCtxCreate_v2");
	*(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
	*(void **)&release = dlsym(library, "cuMemFree_v2");
	*(void **)&information = dlsym(library, "cuMemGetInfo_v2");
	if (init(0) != CUDA_SUCCESS || create(&context, 0, 0) != CUDA_SUCCESS)
		return 1;
	for (unsigned i = 0; i < LIVE; i++)
		if (allocate(&live[i], 512) != CUDA_SUCCESS)
			return 1;
	for (unsigned i = 0; i < LIVE; i++) /* the second time tables have the room they need */
		if (replace(i))
			return 1;
	say("strict\n");
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
		return 1;
	for (unsigned i = 0; i < CALLS; i++) {
		drawn = drawn * 1664525 + 1013904223;
		if (replace(drawn >> 22))
			syscall(SYS_exit, 3);
	}
	say("100000 calls\n");
	syscall(SYS_exit, 0);
	return 0;
}
