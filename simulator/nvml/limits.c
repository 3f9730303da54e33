/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory limits of cgroups, as in drivers from 615 on. The real one needs cgroup v2; this one
 * accepts the directory of any cgroup. The soft limit is stored and reported, but has no effect.
 */
#include "../limit.h"
#include "library.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIMITS_SINCE 615

/* Requires root: what the driver's "requires root" amounts to in the kernel. */
static bool is_administrator(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];

	return syscall(SYS_capget, &header, sets) == 0 &&
	       sets[CAP_SYS_ADMIN / 32].effective & 1u << CAP_SYS_ADMIN % 32;
}

static nvmlReturn_t prepare(const char *directory, struct cgroup *cgroup)
{
	REQUIRE(strtol(device->header.driver_version, NULL, 10) >= LIMITS_SINCE,
		NVML_ERROR_NOT_SUPPORTED);
	REQUIRE(directory && directory[0] == '/', NVML_ERROR_INVALID_ARGUMENT);
	return cgroup_open(directory, cgroup) ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, nvmlSetMemoryLimits_v1_t *limits)
{
	struct cgroup cgroup;
	nvmlReturn_t status;
	uint64_t total;
	bool set;

	REQUIRE_CARD(card, handle);
	REQUIRE(limits, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->parent == 0, NVML_ERROR_NOT_SUPPORTED);
	status = prepare(limits->nameSpace, &cgroup);
	if (status != NVML_SUCCESS)
		return status;
	REQUIRE(is_administrator(), NVML_ERROR_NO_PERMISSION);
	total = card_profile(card)->memory_bytes;
	REQUIRE(limits->softLimit <= limits->hardLimit, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(limits->softLimit <= total, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(limits->hardLimit <= total || limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX,
		NVML_ERROR_INVALID_ARGUMENT);
	card_look(card);
	set = limit_set(card, &cgroup, limits->softLimit, limits->hardLimit);
	/* Processes that have taken their memory already do not check again. */
	limits_find_all(card, false);
	card_unlock(card);
	return set ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, nvmlGetMemoryLimits_v1_t *limits)
{
	const struct sim_limit *limit;
	struct cgroup cgroup;
	nvmlReturn_t status;

	REQUIRE_CARD(card, handle);
	REQUIRE(limits, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->parent == 0, NVML_ERROR_NOT_SUPPORTED);
	status = prepare(limits->nameSpace, &cgroup);
	if (status != NVML_SUCCESS)
		return status;
	card_look(card);
	limits_find_all(card, false);
	limit = limit_of(card, &cgroup);
	if (limit) {
		limits->softLimit = limit->soft_bytes;
		limits->hardLimit = limit->hard_bytes;
		limits->currentUsed = limit_used_bytes(card, limit);
	}
	card_unlock(card);
	return limit ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
