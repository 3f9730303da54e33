/* SPDX-License-Identifier: Apache-2.0
 *
 * Access between cards. Whole cards can access each other, over the bus; instances cannot. Enabling
 * it takes no memory, and copies work in either case, because the real driver stages them.
 */
#include "driver.h"

#include <stdlib.h>

enum {
	P2P_PERFORMANCE_RANK = 1, /* CUdevice_P2PAttribute */
	P2P_ACCESS_SUPPORTED = 2,
	P2P_NATIVE_ATOMIC_SUPPORTED = 3,
	P2P_ARRAY_ACCESS_SUPPORTED = 4,
};

/* `context` may access `peer`; by the contexts' numbers, which are never reused. */
struct access {
	unsigned long long context, peer;
	struct access *next;
};

static struct latch latch;
static struct access *all;

static bool reaches(CUdevice ordinal, CUdevice peer)
{
	return ordinal != peer && !card_profile(device_card(ordinal))->parent &&
	       !card_profile(device_card(peer))->parent;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal) && device_valid(peer), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(can, CUDA_ERROR_INVALID_VALUE);
	*can = reaches(ordinal, peer);
	return CUDA_SUCCESS;
}

/* All pairs are alike (rank 0), and the bus has no atomics. */
CUresult cuDeviceGetP2PAttribute(
	int *value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(source) && device_valid(destination) && source != destination,
		CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(value && attribute >= P2P_PERFORMANCE_RANK &&
			attribute <= P2P_ARRAY_ACCESS_SUPPORTED,
		CUDA_ERROR_INVALID_VALUE);
	*value = attribute == P2P_ACCESS_SUPPORTED && reaches(source, destination);
	return CUDA_SUCCESS;
}

static struct access **find(CUcontext context, CUcontext peer)
{
	struct access **link = &all;

	while (*link && ((*link)->context != context->id || (*link)->peer != peer->id))
		link = &(*link)->next;
	return link;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	struct access *made;
	bool known;

	REQUIRE_CONTEXT(context);
	REQUIRE(context_valid(peer) && peer != context, CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(reaches(context->device, peer->device), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	made = malloc(sizeof(*made));
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	latch_take(&latch);
	known = *find(context, peer) != NULL;
	if (!known) {
		*made = (struct access){context->id, peer->id, all};
		all = made;
	}
	latch_drop(&latch);
	if (known)
		free(made);
	return known ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	struct access **link, *gone;

	REQUIRE_CONTEXT(context);
	REQUIRE(context_valid(peer), CUDA_ERROR_INVALID_CONTEXT);
	latch_take(&latch);
	link = find(context, peer);
	gone = *link;
	if (gone)
		*link = gone->next;
	latch_drop(&latch);
	free(gone);
	return gone ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
