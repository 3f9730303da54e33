/* SPDX-License-Identifier: Apache-2.0
 *
 * The real driver behind the filter. The loader has mapped it by then: it is the filter's
 * DT_NEEDED, by absolute path.
 */
#include <dlfcn.h>

#include "channel/log.h"
#include "filter.h"
#include "gpushare_abi.h"
#include "symbols.h"

#define REAL_DRIVER GPUSHARE_DRIVER_DIR "/libcuda.so.1"

/* A program that finds a symbol here which the driver behind is too old for must get an answer that
 * it can handle. Not found at look-up it cannot be any more, for we export it; NOT_SUPPORTED is
 * what newer drivers say for what they do not do, and every driver since CUDA 10 knows the word. */
static CUresult not_supported(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

bool driver_has(const struct symbol *symbol)
{
	return *symbol->real != (void (*)(void))not_supported;
}

__attribute__((constructor)) static void driver_bind(void)
{
	void *driver = dlopen(REAL_DRIVER, RTLD_NOLOAD | RTLD_LAZY);

	if (!driver)
		log_always("%s is not loaded: %s", REAL_DRIVER, dlerror());
	for (size_t i = 0; i < symbol_count; i++) {
		/* ISO C has no cast from an object's address to a function's; POSIX does. */
		void *address = driver ? dlsym(driver, symbols[i].symbol) : NULL;
		*(void **)symbols[i].real = address;
		if (!address)
			*symbols[i].real = (void (*)(void))not_supported;
	}
}
