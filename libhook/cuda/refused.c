/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shared card does not do, whatever the arguments are: table/doors.txt says what and why.
 * The prototypes of cuda_driver.h must not be seen here.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "channel/log.h"

enum {
#define CUDA_RESULT(name, value, words) name = (value),
#include "table/cuda_result.inc"
#undef CUDA_RESULT
};

#define CUDA_REFUSED(symbol, error, why)                                                           \
	__attribute__((visibility("default"))) int symbol(void);                                   \
	int symbol(void)                                                                           \
	{                                                                                          \
		static _Atomic bool said;                                                          \
		if (!atomic_exchange(&said, true))                                                 \
			log_line(LOG_WARNING, "%s is refused: %s", #symbol, why);                  \
		return error;                                                                      \
	}
#include "table/cuda_refused.inc"
