/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the driver as NVIDIA's runtime library does: one dlopen, one dlsym, and everything else by
 * name from cuGetProcAddress, here every line of the table, with and without per-thread streams.
 * Prints how many look-ups there were; each that is not answered with the right function is told.
 *
 *     lookups VERSION     the driver's own version
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE, LEGACY, PER_THREAD };

static const struct line {
	const char *symbol, *name;
	int version, stream;
} table[] = {
#define CUDA_SYMBOL(symbol, name, version, stream) {#symbol, #name, version, stream},
#include "table/cuda.inc"
};

#define LINES (sizeof(table) / sizeof(*table))

static bool has_status;

typedef int look_up(const char *name, void **function, int version, uint64_t flags, int *status);

/* The table's own rule: the last line of the name not above the version; see cuda.inc. */
static const char *expected(const char *name, int version, uint64_t flags)
{
	const char *plain = NULL, *threaded = NULL;

	for (size_t i = 0; i < LINES; i++) {
		if (strcmp(table[i].name, name) != 0 || table[i].version > version)
			continue;
		if (table[i].stream == PER_THREAD)
			threaded = table[i].symbol;
		else
			plain = table[i].symbol;
	}
	return flags & 2 && threaded ? threaded : plain;
}

static int check(
	look_up *find, void *library, const char *name, int version, uint64_t flags, int driver)
{
	const char *symbol = expected(name, version < driver ? version : driver, flags);
	void *wanted = symbol ? dlsym(library, symbol) : NULL;
	void *found = library;
	int status = -1;
	int result = find(name, &found, version, flags, &status);
	bool status_fits = !has_status || (wanted ? status == 0 : status > 0);

	if (found == wanted && result == (wanted ? 0 : 500) && status_fits)
		return 0;
	fprintf(stderr, "%s, version %d, flags %d: not %s\n", name, version, (int)flags,
		symbol ? symbol : "refused");
	return 1;
}

int main(int argc, char **argv)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	look_up *find = library ? (look_up *)dlsym(library, "cuGetProcAddress_v2") : NULL;

	has_status = find;
	if (library && !find)
		find = (look_up *)dlsym(library, "cuGetProcAddress");
	int driver = argc > 1 ? atoi(argv[1]) : 0;
	unsigned int wrong = 0, asked = 0;

	if (!find) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (size_t i = 0; i < LINES; i++) {
		for (uint64_t flags = 0; flags <= 2; flags++, asked += 2) {
			wrong += check(
				find, library, table[i].name, table[i].version, flags, driver);
			wrong += check(find, library, table[i].name, driver, flags, driver);
		}
	}
	wrong += check(find, library, "", driver, 0, driver);
	wrong += check(find, library, "cuNoSuchThing", driver, 2, driver);
	printf("%u\n", asked);
	return wrong != 0;
}
