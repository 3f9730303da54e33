/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that no tenant may call on a card that others share: table/coverage.txt lists them
 * with the reasons. The prototypes of nvml_api.h must not be visible here: whatever the arguments
 * are, the result is the same.
 */
#include "channel/log.h"
#include "symbols.h"

enum {
#define NVML_RESULT(name, value, since, words) name = (value),
#include "table/nvml_result.inc"
#undef NVML_RESULT
};

/* Only logged at debug level: tools expect this error, and some call every second. */
static int refuse(const char *symbol, int error, const char *why)
{
	if (!library_is_initialized())
		return NVML_ERROR_UNINITIALIZED;
	log_line(LOG_DEBUG, "%s is refused: %s", symbol, why);
	return error;
}

#define NVML_REFUSED(symbol, error, why)                                                           \
	__attribute__((visibility("default"))) int symbol(void);                                   \
	int symbol(void)                                                                           \
	{                                                                                          \
		return refuse(#symbol, error, why);                                                \
	}
#include "table/nvml_refused.inc"
