/* SPDX-License-Identifier: Apache-2.0
 *
 * A card's reserve: the pages that this process retains for its graphs until cuDeviceGraphMemTrim.
 *
 * Pages have no identity here, so the reserve is a number. Instances that were last launched on one
 * stream cannot run at the same time and share pages; those of different streams have their own.
 * The CUDA programming guide ("Graph Memory Nodes") guarantees no more than that.
 *
 * An H200 with driver 580 takes chunks for a graph before it refuses it, and keeps them: no trim
 * frees them, and no graph uses them. Here it is one chunk each time.
 */
#include "graph_memory.h"

#include <string.h>

#define LOST_BYTES (UINT64_C(32) << 20)

static struct {
	uint64_t bytes, used, lost;
} reserves[SIM_CARDS];

static uint64_t whole_units(uint64_t bytes)
{
	return (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

/* The pages behind an instance's addresses, except live allocations, which are counted
 * separately. */
static uint64_t mapped_bytes(CUgraphExec instance, CUdevice card)
{
	uint64_t bytes = instance->scratch_bytes[card];

	for (size_t i = 0; i < instance->held_count; i++) {
		const struct hold *held = &instance->held[i];

		if (held->alone && !held->frees && held->allocation->card == card &&
			!held->allocation->live)
			bytes += whole_units(held->allocation->parameters.bytesize);
	}
	return whole_units(bytes);
}

/* Whether another instance of the same stream has more: the pages are then that one's. */
static bool outdone(CUgraphExec instance, CUdevice card)
{
	uint64_t own = mapped_bytes(instance, card);

	for (CUgraphExec other = instances; other; other = other->next) {
		uint64_t bytes = mapped_bytes(other, card);

		if (other->stream == instance->stream &&
			(bytes > own || (bytes == own && other > instance)))
			return true;
	}
	return false;
}

static uint64_t used_bytes(CUdevice card)
{
	uint64_t bytes = 0;

	for (const struct allocation *allocation = allocations; allocation;
		allocation = allocation->next) {
		if (allocation->live && allocation->card == card)
			bytes += whole_units(allocation->parameters.bytesize);
	}
	for (CUgraphExec instance = instances; instance; instance = instance->next) {
		if (instance->stream && !outdone(instance, card))
			bytes += mapped_bytes(instance, card);
	}
	return bytes;
}

static bool reserve_grow(CUdevice ordinal, uint64_t bytes)
{
	struct sim_card *card = device_card(ordinal);
	bool fits;

	card_lock(card);
	fits = card_reserve(card, bytes);
	card_unlock(card);
	if (fits)
		reserves[ordinal].bytes += bytes;
	return fits;
}

static void reserve_shrink(CUdevice ordinal, uint64_t bytes)
{
	struct sim_card *card = device_card(ordinal);

	card_lock(card);
	card_release(card, reserves[ordinal].bytes - bytes);
	card_unlock(card);
	reserves[ordinal].bytes = bytes;
}

static bool reserve_cover(CUdevice ordinal)
{
	const uint64_t used = used_bytes(ordinal), bytes = used + reserves[ordinal].lost;

	if (bytes > reserves[ordinal].bytes &&
		!reserve_grow(ordinal, bytes - reserves[ordinal].bytes)) {
		pools_trim();
		if (!reserve_grow(ordinal, bytes - reserves[ordinal].bytes)) {
			if (reserve_grow(ordinal, LOST_BYTES))
				reserves[ordinal].lost += LOST_BYTES;
			return false;
		}
	}
	reserves[ordinal].used = used;
	return true;
}

bool reserves_cover(void)
{
	for (CUdevice i = 0; i < (CUdevice)device_count(); i++)
		if (!reserve_cover(i))
			return false;
	return true;
}

/* A running instance keeps its pages; others get theirs again at their next launch. */
CUresult cuDeviceGraphMemTrim(CUdevice card)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(card), CUDA_ERROR_INVALID_DEVICE);
	latch_take(&graph_memory);
	for (CUgraphExec instance = instances; instance; instance = instance->next) {
		if (instance->stream && mapped_bytes(instance, card) > 0 &&
			stream_done(instance->stream))
			instance->stream = NULL;
	}
	reserves_cover();
	reserve_shrink(card, reserves[card].used + reserves[card].lost);
	latch_drop(&graph_memory);
	return CUDA_SUCCESS;
}

/* Nothing of the context's is allocated or mapped any more, and the rest is released. */
void graphs_forget_context(CUcontext context)
{
	struct allocation *next;

	latch_take(&graph_memory);
	for (CUgraphExec instance = instances; instance; instance = instance->next) {
		if (instance->stream && instance->stream->context == context)
			instance->stream = NULL;
	}
	for (struct allocation *allocation = allocations; allocation; allocation = next) {
		next = allocation->next;
		if (allocation->region->context == context)
			allocation_set_live(allocation, false);
	}
	reserves_cover();
	reserves[context->device].lost = 0;
	if (reserves[context->device].bytes > 0)
		reserve_shrink(context->device, reserves[context->device].used);
	latch_drop(&graph_memory);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice card, CUgraphMem_attribute attribute, void *value)
{
	uint64_t figure;

	REQUIRE_DRIVER();
	REQUIRE(device_valid(card), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ||
			attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
		CUDA_ERROR_NOT_SUPPORTED);
	latch_take(&graph_memory);
	figure = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ? reserves[card].used
								 : reserves[card].bytes;
	latch_drop(&graph_memory);
	memcpy(value, &figure, sizeof(figure));
	return CUDA_SUCCESS;
}
