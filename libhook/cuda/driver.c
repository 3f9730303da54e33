/* SPDX-License-Identifier: Apache-2.0
 *
 * The real driver behind the library. The loader has already mapped it: it is the library's
 * DT_NEEDED, by absolute path.
 */
#include "channel/log.h"
#include "interpose.h"
#include "gpushare_abi.h"
#include "loader/library.h"
#include "symbols.h"

#define REAL_DRIVER GPUSHARE_DRIVER_DIR "/libcuda.so.1"

/* For a program that the loader bound to a symbol before this library made it absent: it needs a
 * result that it can handle. NOT_SUPPORTED is what newer drivers return for missing features, and
 * every driver since CUDA 10 knows it. */
static CUresult not_supported(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

bool driver_defines(void (*real)(void))
{
	return real != (void (*)(void))not_supported;
}

/* Where the driver lacks a symbol, this library must, too: programs probe by dlsym. */
static void hide_absent(void)
{
	struct library own;

	if (!library_of(&own, symbols) || !library_hide_begin(&own))
		return;
	for (size_t i = 0; i < symbol_count; i++)
		if (!driver_has(&symbols[i]))
			library_hide(&own, symbols[i].symbol, symbol_hashes[i]);
	library_hide_end(&own);
}

__attribute__((constructor)) static void driver_bind(void)
{
	struct library driver;
	const bool loaded = library_find(&driver, REAL_DRIVER);
	size_t absent = 0;

	if (!loaded)
		log_always("%s is not loaded", REAL_DRIVER);
	for (size_t i = 0; i < symbol_count; i++) {
		/* ISO C has no cast from an object's address to a function's; POSIX does. */
		void *address =
			loaded ? library_symbol(&driver, symbols[i].symbol, symbol_hashes[i])
			       : NULL;
		void (**real)(void) = symbol_real(&symbols[i]);
		*(void **)real = address;
		if (!address) {
			*real = (void (*)(void))not_supported;
			absent++;
		}
	}
	if (loaded && absent > 0)
		hide_absent();
}
