/* SPDX-License-Identifier: Apache-2.0
 *
 * The symbols that the NVML of the profile's CUDA version does not have yet; see ../absent.c.
 */
#include "device.h"
#include "loader/library.h"

static const struct line {
	char symbol[72];
	uint32_t since;
} lines[] = {
#define NVML_SYMBOL(symbol, since) {#symbol, since},
#include "table/nvml.inc"
#undef NVML_SYMBOL
};

__attribute__((constructor)) static void hide_newer(void)
{
	const uint32_t version = device_cuda_version();
	struct library own;

	if (!library_of(&own, lines) || !library_hide_begin(&own))
		return;
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
		if (lines[i].since > version)
			library_hide(&own, lines[i].symbol, library_hash(lines[i].symbol));
	library_hide_end(&own);
}
