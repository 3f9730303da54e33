/* SPDX-License-Identifier: Apache-2.0
 *
 * Without the tenant's pages, NVML would show the whole card and every process on it.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "channel/log.h"
#include "interpose.h"
#include "quota/pages.h"
#include "symbols.h"

static nvmlReturn_t ready(void)
{
	static _Atomic bool logged;
	const char *why = pages_open(PAGES_READ);

	if (!why)
		return NVML_SUCCESS;
	if (!atomic_exchange(&logged, true))
		log_always("no GPU: the quota of this container is unknown: %s. Restart the "
			   "container, "
			   "and run `gpushare doctor` on the host.",
			why);
	return NVML_ERROR_DRIVER_NOT_LOADED;
}

#define INIT(symbol, parameters, arguments)                                                        \
	NVML(symbol, parameters)                                                                   \
	{                                                                                          \
		const nvmlReturn_t result = ready();                                               \
		return result == NVML_SUCCESS ? REAL(symbol) arguments : result;                   \
	}

INIT(nvmlInit, (void), ())
INIT(nvmlInit_v2, (void), ())
INIT(nvmlInitWithFlags, (unsigned int flags), (flags))

bool library_is_initialized(void)
{
	unsigned int count;

	return REAL(nvmlDeviceGetCount_v2)(&count) != NVML_ERROR_UNINITIALIZED;
}
