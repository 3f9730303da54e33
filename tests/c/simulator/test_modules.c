/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules: when they take memory, and how much.
 */
#include "made.h"

#include "expect.h"

#define HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

static const char big[] = HEAD ".visible .global .align 4 .b8 table[6291456];\n"
			       ".visible .const .u32 few[16];\n"
			       ".visible .entry idle() { ret; }\n";

static void a_module_takes_memory_while_it_is_loaded(void)
{
	size_t before = free_bytes(), bytes;
	CUdeviceptr pointer;
	CUmodule module;
	CUcontext own;

	/* In a context of its own, which has no block for small allocations yet. */
	EXPECT_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuModuleLoadData(&module, big), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 6 * MIB + 2 * MIB); /* constants and code share one */
	EXPECT_EQUAL(cuModuleGetGlobal_v2(&pointer, &bytes, module, "table"), CUDA_SUCCESS);
	EXPECT_EQUAL(bytes, 6 * MIB);
	EXPECT_EQUAL(cuMemsetD8_v2(pointer, 1, bytes), CUDA_SUCCESS);
	EXPECT_EQUAL(cuModuleUnload(module), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
}

static void a_library_takes_it_where_it_is_first_used(void)
{
	size_t before = free_bytes();
	CUkernel kernel;
	CUlibrary library;
	CUcontext own;

	EXPECT_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLibraryLoadData(&library, big, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuLibraryGetKernel(&kernel, library, "idle"), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQUAL(cuLaunchKernel((CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, NULL,
				     NULL, NULL),
			CUDA_SUCCESS);
		EXPECT_EQUAL(before - free_bytes(), 8 * MIB);
	}
	EXPECT_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuLibraryUnload(library), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void one_that_does_not_fit_is_out_of_memory_and_leaves_no_trace(void)
{
	size_t before = free_bytes();
	CUdeviceptr rest;
	CUmodule module;

	EXPECT_EQUAL(cuMemAlloc_v2(&rest, before - 4 * MIB), CUDA_SUCCESS);
	EXPECT_EQUAL(cuModuleLoadData(&module, big), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(free_bytes(), 4 * MIB);
	EXPECT_EQUAL(cuMemFree_v2(rest), CUDA_SUCCESS);
}

static void a_managed_variable_is_not_on_the_card(void)
{
	size_t before = free_bytes(), bytes;
	CUdeviceptr pointer;
	CUmodule module;

	EXPECT_EQUAL(
		cuModuleLoadData(&module, HEAD ".visible .global .attribute(.managed) .align 4 "
					       ".b8 shared_table[6291456];\n"),
		CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuModuleGetGlobal_v2(&pointer, &bytes, module, "shared_table"), CUDA_SUCCESS);
	((char *)(uintptr_t)pointer)[bytes - 1] = 'x';
	EXPECT_EQUAL(cuModuleUnload(module), CUDA_SUCCESS);
}

void test_modules(void)
{
	a_module_takes_memory_while_it_is_loaded();
	a_library_takes_it_where_it_is_first_used();
	one_that_does_not_fit_is_out_of_memory_and_leaves_no_trace();
	a_managed_variable_is_not_on_the_card();
}
