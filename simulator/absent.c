/* SPDX-License-Identifier: Apache-2.0
 *
 * The symbols that a driver of the profile's CUDA version does not have yet. A program that looks
 * for one with dlsym gets NULL, as from the real driver.
 */
#include "device.h"
#include "loader/library.h"

static const struct line {
	char symbol[60];
	uint32_t version;
} lines[] = {
#define CUDA_SYMBOL(symbol, name, version, stream) {#symbol, version},
#include "table/cuda.inc"
#undef CUDA_SYMBOL
};

__attribute__((constructor)) static void hide_newer(void)
{
	const uint32_t version = device_cuda_version();
	struct library own;

	if (!library_of(&own, lines) || !library_hide_begin(&own))
		return;
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
		if (lines[i].version > version)
			library_hide(&own, lines[i].symbol, library_hash(lines[i].symbol));
	library_hide_end(&own);
}
