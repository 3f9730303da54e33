/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands before the driver's library REAL, and prints each name that cuGetProcAddress is asked for.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#ifdef REAL
typedef int lookup(const char *name, void **found, int version, uint64_t flags, void *status);

lookup cuGetProcAddress;
#ifdef HAS_V2
lookup cuGetProcAddress_v2;
#endif

/* cudart asks each form for the form that it goes on with. */
static int ask(
	const char *form, const char *name, void **found, int version, uint64_t flags, void *status)
{
	void *driver = dlopen(REAL, RTLD_LAZY | RTLD_NOLOAD);
	int result =
		((lookup *)(uintptr_t)dlsym(driver, form))(name, found, version, flags, status);

	fprintf(stderr, "%s\n", name);
	if (*found && *found == dlsym(driver, "cuGetProcAddress"))
		*found = (void *)(uintptr_t)cuGetProcAddress;
#ifdef HAS_V2
	if (*found && *found == dlsym(driver, "cuGetProcAddress_v2"))
		*found = (void *)(uintptr_t)cuGetProcAddress_v2;
#endif
	return result;
}

int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags, void *status)
{
	return ask("cuGetProcAddress", name, found, version, flags, status);
}

#ifdef HAS_V2
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, void *status)
{
	return ask("cuGetProcAddress_v2", name, found, version, flags, status);
}
#endif
#endif
