/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver from within its own process, so that the sanitizers see all of it.
 */
#include "made.h"

#include "expect.h"

#include <string.h>

static void nothing_works_before_cuinit(void)
{
	int count;

	EXPECT_EQUAL(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

static void a_name_is_found_by_version_and_flavour(void)
{
	CUdriverProcAddressQueryResult status;
	void *plain, *threaded;

	EXPECT_EQUAL(cuGetProcAddress_v2("cuMemcpyAsync", &plain, 13000, 0, &status), CUDA_SUCCESS);
	EXPECT_EQUAL(
		cuGetProcAddress_v2("cuMemcpyAsync", &threaded, 13000, 2, &status), CUDA_SUCCESS);
	EXPECT(plain == (void *)cuMemcpyAsync && threaded == (void *)cuMemcpyAsync_ptsz);
	EXPECT_EQUAL(cuGetProcAddress_v2("cuMemAlloc", &plain, 3010, 0, &status), CUDA_SUCCESS);
	EXPECT(plain == (void *)cuMemAlloc);
	EXPECT_EQUAL(cuGetProcAddress_v2("cuMemAllocAsync", &plain, 11010, 0, &status),
		CUDA_ERROR_NOT_FOUND);
	EXPECT_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	EXPECT_EQUAL(cuGetProcAddress_v2("cuNoSuchThing", &plain, 13000, 0, &status),
		CUDA_ERROR_NOT_FOUND);
	EXPECT_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	EXPECT(plain == NULL);
}

static void what_is_not_simulated_says_so(void)
{
	CUdriverProcAddressQueryResult status;
	CUresult (*print)(CUgraph, const char *, unsigned int);
	void *found;

	EXPECT_EQUAL(cuGetProcAddress_v2("cuGraphDebugDotPrint", &found, 13000, 0, &status),
		CUDA_SUCCESS);
	memcpy(&print, &found, sizeof(print));
	EXPECT_EQUAL(print(NULL, NULL, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void no_export_table_is_given_out(void)
{
	const CUuuid id = {{1}};
	const void *table = &id;

	EXPECT_EQUAL(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
	EXPECT(table == NULL);
}

int main(void)
{
	nothing_works_before_cuinit();
	made_context();
	a_name_is_found_by_version_and_flavour();
	what_is_not_simulated_says_so();
	no_export_table_is_given_out();
	test_memory();
	test_contexts();
	test_arrays();
	test_modules();
	test_graphs();
	test_work();
	test_graph_memory();
	test_pools();
	test_capture();
	test_shallow();
	test_streams();
	return 0;
}
