/* SPDX-License-Identifier: Apache-2.0
 *
 * The location of cards: their NUMA nodes, the PCIe topology between two of them, and their
 * NVLinks. A card has as many links to each card that it is linked with, numbered in the order of
 * those cards.
 */
#include "library.h"

#include <string.h>

/* nvmlGpuTopologyLevel_t */
enum {
	LEVEL_INTERNAL = 0,
	LEVEL_SWITCH = 10,
	LEVEL_BRIDGE = 30,
	LEVEL_NODE = 40,
	LEVEL_SYSTEM = 50
};

enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_NVLINK = 2, P2P_KINDS = 5 };
enum { REMOTE_GPU = 0, SCOPE_NODE = 0, LINKS_MOST = 18 };

static int level_between(const struct sim_profile *one, const struct sim_profile *other)
{
	if (one == other)
		return LEVEL_INTERNAL;
	if (one->numa_node != other->numa_node)
		return LEVEL_SYSTEM;
	if (one->pci_bridge != other->pci_bridge)
		return LEVEL_NODE;
	return one->pci_switch == other->pci_switch ? LEVEL_SWITCH : LEVEL_BRIDGE;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(
	nvmlDevice_t handle, nvmlDevice_t other, int *level)
{
	REQUIRE_CARD(card, handle);
	REQUIRE_CARD(second, other);
	REQUIRE(level, NVML_ERROR_INVALID_ARGUMENT);
	*level = level_between(card_profile(card), card_profile(second));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(
	nvmlDevice_t handle, int level, unsigned int *count, nvmlDevice_t *devices)
{
	unsigned int found = 0;

	REQUIRE_CARD(card, handle);
	REQUIRE(count && (devices || *count == 0), NVML_ERROR_INVALID_ARGUMENT);
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		const struct sim_profile *other = &device->profiles[i];

		if (other == card_profile(card) || !device_has_node(i) ||
			level_between(card_profile(card), other) > level)
			continue;
		if (found < *count)
			devices[found] = library_handle(i);
		found++;
	}
	*count = found;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t handle, nvmlDevice_t other, int kind, int *status)
{
	REQUIRE_CARD(card, handle);
	REQUIRE_CARD(second, other);
	REQUIRE(status && kind >= 0 && kind < P2P_KINDS, NVML_ERROR_INVALID_ARGUMENT);
	*status = P2P_OK;
	if (kind == P2P_NVLINK && !(card_profile(card)->nvlink_peers >> card_index(second) & 1))
		*status = P2P_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(
	nvmlDevice_t handle, unsigned int size, unsigned long *nodes, unsigned int scope)
{
	const unsigned int bits = 8 * sizeof(*nodes);

	REQUIRE_CARD(card, handle);
	const unsigned int node = card_profile(card)->numa_node;

	REQUIRE(nodes && size > 0 && scope <= 1, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(node / bits < size, NVML_ERROR_INSUFFICIENT_SIZE);
	memset(nodes, 0, size * sizeof(*nodes));
	nodes[node / bits] = 1UL << (node % bits);
	return NVML_SUCCESS;
}

/* The card at the other end of a link, or the error that there is none. */
static nvmlReturn_t link_end(nvmlDevice_t handle, unsigned int link, const struct sim_card **end)
{
	unsigned int first = 0;

	REQUIRE_CARD(card, handle);
	const struct sim_profile *profile = card_profile(card);

	REQUIRE(link < LINKS_MOST, NVML_ERROR_INVALID_ARGUMENT);
	for (uint32_t i = 0; i < device->header.card_count; i++) {
		if (!(profile->nvlink_peers >> i & 1))
			continue;
		if (link < first + profile->nvlinks) {
			*end = &device->cards[i];
			return NVML_SUCCESS;
		}
		first += profile->nvlinks;
	}
	return first == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, int *active)
{
	const struct sim_card *end;
	nvmlReturn_t status = link_end(handle, link, &end);

	REQUIRE(status == NVML_SUCCESS, status);
	REQUIRE(active, NVML_ERROR_INVALID_ARGUMENT);
	*active = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned int link, int *type)
{
	const struct sim_card *end;
	nvmlReturn_t status = link_end(handle, link, &end);

	REQUIRE(status == NVML_SUCCESS, status);
	REQUIRE(type, NVML_ERROR_INVALID_ARGUMENT);
	*type = REMOTE_GPU;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(
	nvmlDevice_t handle, unsigned int link, nvmlPciInfo_t *pci)
{
	const struct sim_card *end;
	nvmlReturn_t status = link_end(handle, link, &end);

	REQUIRE(status == NVML_SUCCESS, status);
	return nvmlDeviceGetPciInfo_v3(library_handle(card_index(end)), pci);
}
