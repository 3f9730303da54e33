/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that an instance needs for its allocations. Those that it frees itself share one
 * stretch, if the dependencies ensure that one ends before another begins; an allocation that
 * outlives the launch has pages of its own.
 */
#include "graph_memory.h"

#include <stdlib.h>

struct footprint *footprints;

/* One allocation from its first to its last step, and its offset in the stretch. */
struct span {
	struct allocation *allocation;
	size_t begin, end; /* steps */
	uint64_t offset, bytes;
};

/* Whether one ends before the other begins, in any order of the steps. */
static bool apart(const struct step *steps, const struct span *one, const struct span *other)
{
	return one->allocation->card != other->allocation->card ||
	       step_after(&steps[one->begin], other->end) ||
	       step_after(&steps[other->begin], one->end);
}

static int by_offset(const void *a, const void *b)
{
	const struct span *const *one = a, *const *other = b;

	if ((*one)->offset == (*other)->offset)
		return 0;
	return (*one)->offset < (*other)->offset ? -1 : 1;
}

/* Put spans[count] at the first offset without a conflicting span; `room` holds `count`. */
static void place(const struct step *steps, struct span *spans, size_t count, struct span **room)
{
	struct span *span = &spans[count];
	size_t in_the_way = 0;

	for (size_t i = 0; i < count; i++) {
		if (!apart(steps, span, &spans[i]))
			room[in_the_way++] = &spans[i];
	}
	qsort(room, in_the_way, sizeof(*room), by_offset);
	span->offset = 0;
	for (size_t i = 0; i < in_the_way; i++) {
		if (room[i]->offset >= span->offset + span->bytes)
			break;
		if (room[i]->offset + room[i]->bytes > span->offset)
			span->offset = room[i]->offset + room[i]->bytes;
	}
}

static size_t step_freeing(const struct CUgraphExec_st *instance, struct allocation *allocation)
{
	for (size_t i = 0; i < instance->step_count; i++) {
		if (instance->steps[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
			instance->steps[i].allocation == allocation)
			return i;
	}
	return instance->step_count;
}

static void plan(struct footprint *footprint, const struct CUgraphExec_st *instance,
	struct span *spans, struct span **room)
{
	size_t count = 0;

	for (size_t i = 0; i < instance->step_count; i++) {
		struct allocation *allocation = instance->steps[i].allocation;
		size_t end;
		uint64_t *bytes;

		if (!allocation)
			continue;
		footprint->held[footprint->held_count++] = (struct hold){
			allocation, instance->steps[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC};
		if (instance->steps[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			continue;
		end = step_freeing(instance, allocation);
		if (end == instance->step_count) {
			footprint->outliving[footprint->outliving_count++] = allocation;
			continue;
		}
		spans[count] = (struct span){.allocation = allocation,
			.begin = i,
			.end = end,
			.bytes = (allocation->parameters.bytesize + GRANULE_BYTES - 1) /
				 GRANULE_BYTES * GRANULE_BYTES};
		place(instance->steps, spans, count, room);
		bytes = &footprint->scratch_bytes[allocation->card];
		if (*bytes < spans[count].offset + spans[count].bytes)
			*bytes = spans[count].offset + spans[count].bytes;
		count++;
	}
}

static size_t count_allocations(const struct CUgraphExec_st *instance)
{
	size_t count = 0;

	for (size_t i = 0; i < instance->step_count; i++)
		count += instance->steps[i].allocation != NULL;
	return count;
}

/* An allocation belongs to one instance at a time. */
static bool join(struct footprint *footprint)
{
	bool alone = true;

	latch_take(&graph_memory);
	for (size_t i = 0; i < footprint->held_count; i++)
		alone &= !footprint->held[i].own || !footprint->held[i].allocation->instantiated;
	for (size_t i = 0; i < footprint->held_count && alone; i++) {
		footprint->held[i].allocation->holders++;
		footprint->held[i].allocation->instantiated |= footprint->held[i].own;
	}
	if (alone) {
		footprint->next = footprints;
		footprints = footprint;
	}
	latch_drop(&graph_memory);
	return alone;
}

static void part(struct footprint *footprint)
{
	latch_take(&graph_memory);
	for (struct footprint **link = &footprints; *link; link = &(*link)->next) {
		if (*link == footprint) {
			*link = footprint->next;
			break;
		}
	}
	for (size_t i = 0; i < footprint->held_count; i++) {
		if (footprint->held[i].own)
			footprint->held[i].allocation->instantiated = false;
		allocation_drop(footprint->held[i].allocation);
	}
	reserves_cover();
	latch_drop(&graph_memory);
}

static void footprint_release(struct footprint *footprint)
{
	free(footprint->held);
	free(footprint->outliving);
	free(footprint);
}

CUresult footprint_new(struct footprint **result, const struct CUgraphExec_st *instance)
{
	size_t count = count_allocations(instance);
	struct footprint *footprint = count ? calloc(1, sizeof(*footprint)) : NULL;
	struct span *spans = malloc((count + 1) * sizeof(*spans));
	struct span **room = malloc((count + 1) * sizeof(*room));
	CUresult status = count && !footprint ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;

	if (footprint) {
		footprint->held = malloc(count * sizeof(*footprint->held));
		footprint->outliving = malloc(count * sizeof(struct allocation *));
		if (!footprint->held || !footprint->outliving || !spans || !room) {
			status = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			plan(footprint, instance, spans, room);
			status = join(footprint) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	free(spans);
	free(room);
	if (status == CUDA_SUCCESS)
		*result = footprint;
	else if (footprint)
		footprint_release(footprint);
	return status;
}

void footprint_free(struct footprint *footprint)
{
	part(footprint);
	footprint_release(footprint);
}

static bool any_live(const struct footprint *footprint)
{
	for (size_t i = 0; i < footprint->outliving_count; i++) {
		if (footprint->outliving[i]->live)
			return true;
	}
	return false;
}

static void outliving_live(struct footprint *footprint, bool live)
{
	for (size_t i = 0; i < footprint->outliving_count; i++)
		allocation_set_live(footprint->outliving[i], live);
}

/* With the latch held. */
static CUresult map(struct footprint *footprint, CUstream stream, bool launch)
{
	CUstream before = footprint->stream;

	footprint->stream = stream;
	if (launch)
		outliving_live(footprint, true);
	if (reserves_cover())
		return CUDA_SUCCESS;
	footprint->stream = before;
	if (launch)
		outliving_live(footprint, false);
	reserves_cover();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult footprint_upload(struct footprint *footprint, CUstream stream)
{
	CUresult result;

	latch_take(&graph_memory);
	result = map(footprint, stream, false);
	latch_drop(&graph_memory);
	return result;
}

CUresult footprint_launch(struct footprint *footprint, CUstream stream, bool auto_free)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	latch_take(&graph_memory);
	if (auto_free)
		outliving_live(footprint, false);
	if (!any_live(footprint))
		result = map(footprint, stream, true);
	latch_drop(&graph_memory);
	return result;
}
