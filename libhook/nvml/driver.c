/* SPDX-License-Identifier: Apache-2.0
 *
 * The real library behind the filter: its DT_NEEDED, by absolute path, so mapped by now.
 */
#include <dlfcn.h>

#include "channel/log.h"
#include "filter.h"
#include "gpushare_abi.h"
#include "symbols.h"

#define REAL_LIBRARY GPUSHARE_DRIVER_DIR "/libnvidia-ml.so.1"

/* NVML's own word for a driver that is older than the program. */
static nvmlReturn_t not_found(void)
{
	return NVML_ERROR_FUNCTION_NOT_FOUND;
}

__attribute__((constructor)) static void library_bind(void)
{
	void *library = dlopen(REAL_LIBRARY, RTLD_NOLOAD | RTLD_LAZY);

	if (!library)
		log_always("%s is not loaded: %s", REAL_LIBRARY, dlerror());
	for (size_t i = 0; i < symbol_count; i++) {
		/* ISO C has no cast from an object's address to a function's; POSIX does. */
		void *address = library ? dlsym(library, symbols[i].symbol) : NULL;
		*(void **)symbols[i].real = address;
		if (!address)
			*symbols[i].real = (void (*)(void))not_found;
	}
}
