/* SPDX-License-Identifier: Apache-2.0
 *
 * The real library behind this one: its DT_NEEDED, by absolute path, so already mapped.
 */
#include <stdbool.h>

#include "channel/log.h"
#include "interpose.h"
#include "gpushare_abi.h"
#include "loader/library.h"
#include "symbols.h"

#define REAL_LIBRARY GPUSHARE_DRIVER_DIR "/libnvidia-ml.so.1"

/* NVML's own error for a driver that is older than the program. */
static nvmlReturn_t not_found(void)
{
	return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* As in cuda/driver.c: programs probe by dlsym which form of a function there is. */
static void hide_absent(void)
{
	struct library own;

	if (!library_of(&own, symbols) || !library_hide_begin(&own))
		return;
	for (size_t i = 0; i < symbol_count; i++)
		if (*symbol_real(i) == (void (*)(void))not_found)
			library_hide(&own, symbols[i], symbol_hashes[i]);
	library_hide_end(&own);
}

__attribute__((constructor)) static void library_bind(void)
{
	struct library library;
	const bool loaded = library_find(&library, REAL_LIBRARY);
	size_t absent = 0;

	if (!loaded)
		log_always("%s is not loaded", REAL_LIBRARY);
	for (size_t i = 0; i < symbol_count; i++) {
		/* ISO C has no cast from an object's address to a function's; POSIX does. */
		void *address =
			loaded ? library_symbol(&library, symbols[i], symbol_hashes[i]) : NULL;
		void (**real)(void) = symbol_real(i);
		*(void **)real = address;
		if (!address) {
			*real = (void (*)(void))not_found;
			absent++;
		}
	}
	if (loaded && absent > 0)
		hide_absent();
}
