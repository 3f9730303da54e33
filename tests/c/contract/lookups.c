/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver as NVIDIA's runtime library finds it: one dlopen, and everything else by name from
 * cuGetProcAddress, here every line of the table.
 */
#include "contract.h"

#include <dlfcn.h>
#include <string.h>

enum { NONE, LEGACY, PER_THREAD, UNTOUCHED = 77 };

/* Drivers up to CUDA 12.5 take a version above their own, 13.0 does not. */
enum { FIRST_STRICT = 13000 };

static const struct line {
	const char *symbol, *name;
	int version, stream;
} table[] = {
#define CUDA_SYMBOL(symbol, name, version, stream) {#symbol, #name, version, stream},
#include "table/cuda.inc"
};

#define LINES (sizeof(table) / sizeof(*table))

typedef CUresult look_up(const char *name, void **function, int version, uint64_t flags,
	CUdriverProcAddressQueryResult *status);

static void *library;
static look_up *find;
static bool has_status;

static int driver_version(void)
{
	int version;

	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	find = (look_up *)dlsym(library, "cuGetProcAddress_v2");
	has_status = find;
	if (!find) /* before CUDA 12, without the last argument */
		find = (look_up *)dlsym(library, "cuGetProcAddress");
	CHECK(find);
	OK(cuDriverGetVersion(&version));
	return version;
}

/* The rule of cuda.inc: the last line of the name not above the version, of its per-thread ones
 * where the driver has any and `flags` asks for them. */
static const char *expected(const char *name, int version, uint64_t flags, int driver)
{
	const char *plain = NULL, *threaded = NULL;
	bool has_threads = false;

	for (size_t i = 0; i < LINES; i++) {
		if (strcmp(table[i].name, name) != 0 || table[i].version > driver)
			continue;
		has_threads |= table[i].stream == PER_THREAD;
		if (table[i].version > version)
			continue;
		if (table[i].stream == PER_THREAD)
			threaded = table[i].symbol;
		else
			plain = table[i].symbol;
	}
	return flags & 2 && has_threads ? threaded : plain;
}

/* Whether the answer is not that of the table: its symbol, or if not `exact`, any function where it
 * has one. */
static bool differs(const char *name, int version, uint64_t flags, int driver, bool exact)
{
	const bool is_refused = version > driver && driver >= FIRST_STRICT;
	const char *symbol = is_refused ? NULL : expected(name, version, flags, driver);
	void *wanted = symbol ? dlsym(library, symbol) : NULL, *found = NULL;
	CUdriverProcAddressQueryResult status;
	memset(&status, UNTOUCHED, sizeof(status));
	const CUdriverProcAddressQueryResult untouched = status;
	CUresult result = find(name, &found, version, flags, &status);
	bool is_right;

	if (is_refused)
		is_right = result == CUDA_ERROR_INVALID_VALUE && status == untouched;
	else if (has_status) /* this form never fails for want of a function */
		is_right = result == CUDA_SUCCESS && status != untouched &&
			   (status == CU_GET_PROC_ADDRESS_SUCCESS) == (wanted != NULL);
	else
		is_right = result == (wanted ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
	if (is_right && (exact ? found == wanted : !found == !wanted))
		return false;
	fprintf(stderr, "%s, version %d, flags %d: not %s\n", name, version, (int)flags,
		symbol ? symbol : "refused");
	return true;
}

static void look_all_up(bool exact)
{
	const int driver = driver_version();
	int different = 0;

	for (size_t i = 0; i < LINES; i++) {
		const char *name = table[i].name;

		for (uint64_t flags = 0; flags <= 2; flags++) {
			different += differs(name, table[i].version, flags, driver, exact);
			different += differs(name, driver, flags, driver, exact);
		}
	}
	different += differs("", driver, 0, driver, exact);
	different += differs("cuNoSuchThing", driver, 2, driver, exact);
	EQUAL(different, 0);
}

void every_name_is_looked_up_as_the_table_says(void)
{
	look_all_up(true);
}

void every_name_of_the_table_is_answered(void)
{
	look_all_up(false);
}

void a_symbol_with_a_suffix_is_no_name_or_leads_to_itself(void)
{
	CUdriverProcAddressQueryResult status;
	const int driver = driver_version();

	for (size_t i = 0; i < LINES; i++) {
		void *found = NULL;

		if (expected(table[i].symbol, driver, 0, driver))
			continue;
		if (!find(table[i].symbol, &found, driver, 0, &status) && found &&
			found != dlsym(library, table[i].symbol)) {
			fprintf(stderr, "%s leads elsewhere\n", table[i].symbol);
			exit(1);
		}
	}
}
