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

#define LINES (sizeof(lines) / sizeof(*lines))

/* The table knows some releases only. One in between has the symbols of the next. */
static uint32_t known_release(uint32_t version)
{
	uint32_t next = UINT32_MAX;

	for (size_t i = 0; i < LINES; i++)
		if (lines[i].since >= version && lines[i].since < next)
			next = lines[i].since;
	return next;
}

__attribute__((constructor)) static void hide_newer(void)
{
	const uint32_t release = known_release(device_cuda_version());
	struct library own;

	if (!library_of(&own, lines) || !library_hide_begin(&own))
		return;
	for (size_t i = 0; i < LINES; i++)
		if (lines[i].since > release)
			library_hide(&own, lines[i].symbol, library_hash(lines[i].symbol));
	library_hide_end(&own);
}
