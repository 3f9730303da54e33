/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that are always refused on a shared card: table/coverage.txt lists them with the
 * reasons. The prototypes of cuda_driver.h must not be visible here.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "channel/log.h"

enum {
#define CUDA_RESULT(name, value, since, words) name = (value),
#include "table/cuda_result.inc"
#undef CUDA_RESULT
};

#define CUDA_REFUSED(symbol, error, why)                                                           \
	__attribute__((visibility("default"))) int symbol(void);                                   \
	int symbol(void)                                                                           \
	{                                                                                          \
		static _Atomic bool logged;                                                        \
		if (!atomic_exchange(&logged, true))                                               \
			log_line(LOG_WARNING, "%s is refused: %s", #symbol, why);                  \
		return error;                                                                      \
	}
#include "table/cuda_refused.inc"
