/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA program that reaches the driver in the way that its first argument names, and prints
 * "TOTAL FREE RESULT LEFT": the card's memory as it sees it, what allocating all of it and one MiB
 * more answers, and what is free when it has allocated and freed half.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"

struct driver {
	__typeof__(&cuInit) init;
	__typeof__(&cuCtxCreate_v2) context_create;
	__typeof__(&cuMemGetInfo_v2) memory;
	__typeof__(&cuMemAlloc_v2) allocate;
	__typeof__(&cuMemFree_v2) release;
	/* by stream order, where the way has a flavour of its own */
	__typeof__(&cuMemAllocAsync) allocate_async;
};

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, dlerror());
	exit(2);
}

static void *symbol(void *library, const char *name)
{
	void *address = dlsym(library, name);

	if (!address)
		die(name);
	return address;
}

static void *opened(void *library)
{
	if (!library)
		die("dlopen");
	return library;
}

static void by_dlsym(struct driver *driver, void *library)
{
	*(void **)&driver->init = symbol(library, "cuInit");
	*(void **)&driver->context_create = symbol(library, "cuCtxCreate_v2");
	*(void **)&driver->memory = symbol(library, "cuMemGetInfo_v2");
	*(void **)&driver->allocate = symbol(library, "cuMemAlloc_v2");
	*(void **)&driver->release = symbol(library, "cuMemFree_v2");
}

static void by_dlvsym(struct driver *driver, void *library)
{
	void *(*find)(void *, const char *) = NULL;

	*(void **)&find = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
	if (!find)
		die("dlvsym");
	by_dlsym(driver, library);
	*(void **)&driver->allocate = find(library, "cuMemAlloc_v2");
}

/* As the CUDA runtime does: one dlsym, then everything through what it found. */
static void *look_up(__typeof__(&cuGetProcAddress_v2) find, const char *name, uint64_t flags)
{
	CUdriverProcAddressQueryResult status;
	void *address = NULL;

	if (find(name, &address, 13000, flags, &status) != CUDA_SUCCESS ||
		status != CU_GET_PROC_ADDRESS_SUCCESS)
		die(name);
	return address;
}

static void by_procaddress(struct driver *driver, void *library, uint64_t flags, int depth)
{
	__typeof__(&cuGetProcAddress_v2) find;

	*(void **)&find = symbol(library, "cuGetProcAddress_v2");
	while (depth-- > 0)
		*(void **)&find = look_up(find, "cuGetProcAddress", flags);
	*(void **)&driver->init = look_up(find, "cuInit", flags);
	void *create = NULL; /* at the version of the form that the program was written for */
	find("cuCtxCreate", &create, 3020, flags, NULL);
	*(void **)&driver->context_create = create;
	*(void **)&driver->memory = look_up(find, "cuMemGetInfo", flags);
	*(void **)&driver->allocate = look_up(find, "cuMemAlloc", flags);
	*(void **)&driver->release = look_up(find, "cuMemFree", flags);
	*(void **)&driver->allocate_async = look_up(find, "cuMemAllocAsync", flags);
}

static void by_procaddress_v1(struct driver *driver, void *library)
{
	__typeof__(&cuGetProcAddress) find;
	void *address = NULL;

	by_dlsym(driver, library);
	*(void **)&find = symbol(library, "cuGetProcAddress");
	if (find("cuMemAlloc", &address, 11080, 0) != CUDA_SUCCESS)
		die("cuMemAlloc");
	*(void **)&driver->allocate = address;
}

#ifdef LINKED /* with -lcuda */
static void by_linking(struct driver *driver)
{
	driver->init = cuInit;
	driver->context_create = cuCtxCreate_v2;
	driver->memory = cuMemGetInfo_v2;
	driver->allocate = cuMemAlloc_v2;
	driver->release = cuMemFree_v2;
}
#endif

static void reach(struct driver *driver, const char *way)
{
	const char *name = "libcuda.so.1";

	if (strcmp(way, "dlopen") == 0)
		by_dlsym(driver, opened(dlopen(name, RTLD_NOW | RTLD_LOCAL)));
	else if (strcmp(way, "global") == 0) {
		opened(dlopen(name, RTLD_NOW | RTLD_GLOBAL));
		by_dlsym(driver, RTLD_DEFAULT);
	} else if (strcmp(way, "deepbind") == 0)
		by_dlsym(driver, opened(dlopen(name, RTLD_NOW | RTLD_DEEPBIND)));
	else if (strcmp(way, "dlmopen") == 0)
		by_dlsym(driver, opened(dlmopen(LM_ID_NEWLM, name, RTLD_NOW)));
	else if (strcmp(way, "absolute") == 0)
		by_dlsym(driver, opened(dlopen(getenv("LIBCUDA"), RTLD_NOW)));
	else if (strcmp(way, "dlvsym") == 0)
		by_dlvsym(driver, opened(dlopen(name, RTLD_NOW)));
	else if (strcmp(way, "procaddress") == 0)
		by_procaddress(driver, opened(dlopen(name, RTLD_NOW)), 0, 0);
	else if (strcmp(way, "procaddress-per-thread") == 0)
		by_procaddress(driver, opened(dlopen(name, RTLD_NOW)),
			CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 0);
	else if (strcmp(way, "procaddress-of-procaddress") == 0)
		by_procaddress(driver, opened(dlopen(name, RTLD_NOW)), 0, 2);
	else if (strcmp(way, "procaddress-v1") == 0)
		by_procaddress_v1(driver, opened(dlopen(name, RTLD_NOW)));
#ifdef LINKED
	else if (strcmp(way, "linked") == 0)
		by_linking(driver);
#endif
	else
		die(way);
}

static int over_quota(const struct driver *driver, size_t bytes)
{
	CUdeviceptr pointer;

	if (driver->allocate_async) {
		CUresult result = driver->allocate_async(&pointer, bytes, NULL);
		if (result != CUDA_ERROR_OUT_OF_MEMORY)
			return (int)result;
	}
	return (int)driver->allocate(&pointer, bytes);
}

int main(int count, char **arguments)
{
	struct driver driver = {0};
	CUcontext context;
	CUdeviceptr pointer;
	size_t total, free_bytes, left;

	if (count != 2)
		return 2;
	reach(&driver, arguments[1]);
	int result = (int)driver.init(0);
	if (result != CUDA_SUCCESS) {
		printf("init %d\n", result);
		return 1;
	}
	if (driver.context_create(&context, 0, 0) != CUDA_SUCCESS)
		return 3;
	if (driver.memory(&free_bytes, &total) != CUDA_SUCCESS)
		return 4;
	result = over_quota(&driver, free_bytes + (1 << 20));
	if (driver.allocate(&pointer, free_bytes / 2) != CUDA_SUCCESS ||
		driver.release(pointer) != CUDA_SUCCESS)
		return 5;
	driver.memory(&left, &total);
	printf("%zu %zu %d %zu\n", total, free_bytes, result, left);
	return 0;
}
