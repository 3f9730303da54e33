/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML without the tenant's pages would show the whole card and everybody on it.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "channel/log.h"
#include "filter.h"
#include "quota/pages.h"

static nvmlReturn_t ready(void)
{
	static _Atomic bool said;
	const char *why = pages_open(PAGES_READ);

	if (!why)
		return NVML_SUCCESS;
	if (!atomic_exchange(&said, true))
		log_always("no GPU here, for the quota of this container is not known: %s; start "
			   "the container anew, and see `gpushare doctor` on the host",
			why);
	return NVML_ERROR_DRIVER_NOT_LOADED;
}

NVML(nvmlInit, (void))
{
	nvmlReturn_t result = ready();

	return result == NVML_SUCCESS ? REAL(nvmlInit)() : result;
}

NVML(nvmlInit_v2, (void))
{
	nvmlReturn_t result = ready();

	return result == NVML_SUCCESS ? REAL(nvmlInit_v2)() : result;
}

NVML(nvmlInitWithFlags, (unsigned int flags))
{
	nvmlReturn_t result = ready();

	return result == NVML_SUCCESS ? REAL(nvmlInitWithFlags)(flags) : result;
}
