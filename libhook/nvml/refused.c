/* SPDX-License-Identifier: Apache-2.0
 *
 * What no tenant may do to a card that others share, nor ask about them: table/doors.txt says which
 * and why. The prototypes of nvml_api.h must not be seen here: whatever the arguments are, the
 * answer is the same.
 */
#include "channel/log.h"

enum {
#define NVML_RESULT(name, value, words) name = (value),
#include "table/nvml_result.inc"
#undef NVML_RESULT
};

/* Told only to whoever looks: the error is one that tools expect, and some ask every second. */
#define NVML_REFUSED(symbol, error, why)                                                           \
	__attribute__((visibility("default"))) int symbol(void);                                   \
	int symbol(void)                                                                           \
	{                                                                                          \
		log_line(LOG_DEBUG, "%s is refused: %s", #symbol, why);                            \
		return error;                                                                      \
	}
#include "table/nvml_refused.inc"
