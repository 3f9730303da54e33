/* SPDX-License-Identifier: Apache-2.0
 *
 * The range of device addresses, and the region of each of its units.
 */
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

static struct latch latch;
static uint64_t base;
static uint64_t unit_count;
static struct region **units;
static uint32_t lowest_free; /* no unit before it is free */
static unsigned long long next_id = 1;

void space_take(void)
{
	latch_take(&latch);
}

void space_drop(void)
{
	latch_drop(&latch);
}

uint64_t space_shadow(void)
{
	return unit_count * UNIT_BYTES;
}

/* Twice the memory of all cards, so that addresses do not run out before memory does, and no less
 * than 1 TiB. It is not backed; a limit on address space (ulimit -v) may forbid so much. */
static void reserve_addresses(void)
{
	uint64_t bytes = UINT64_C(1) << 40, memory = 0;
	void *mapped = MAP_FAILED;

	for (uint32_t i = 0; i < device->header.card_count; i++)
		memory += device->profiles[i].memory_bytes;
	while (bytes < 2 * memory)
		bytes *= 2;
	for (; bytes >= UINT64_C(1) << 30 && mapped == MAP_FAILED; bytes /= 2) {
		mapped = mmap(NULL, 2 * bytes + UNIT_BYTES, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		unit_count = bytes / UNIT_BYTES;
	}
	if (mapped == MAP_FAILED)
		return;
	base = ((uint64_t)mapped + UNIT_BYTES - 1) & ~(UNIT_BYTES - 1);
	madvise(mapped, 2 * unit_count * UNIT_BYTES, MADV_DONTDUMP);
	units = mmap(NULL, unit_count * sizeof(*units), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (units == MAP_FAILED || mprotect((void *)(base + space_shadow()), space_shadow(),
					   PROT_READ | PROT_WRITE) != 0)
		units = NULL;
}

bool space_ready(void)
{
	if (!base)
		reserve_addresses();
	return units != NULL;
}

struct region *region_at(CUdeviceptr pointer)
{
	uint64_t unit = (pointer - base) / UNIT_BYTES;

	return units && pointer >= base && unit < unit_count ? units[unit] : NULL;
}

void regions_visit(void (*visit)(struct region *region, void *data), void *data)
{
	for (uint64_t unit = 0; units && unit < unit_count; unit++) {
		if (units[unit] && units[unit]->first == unit)
			visit(units[unit], data);
	}
}

bool memory_is_device(CUdeviceptr pointer)
{
	return base && pointer - base < unit_count * UNIT_BYTES;
}

/* The first of `count` free units in a row, at a multiple of `alignment`; unit_count if none. */
static uint64_t find_units(uint32_t count, uint32_t alignment)
{
	uint64_t start = lowest_free, run = 0;

	for (uint64_t unit = lowest_free; unit < unit_count; unit++) {
		if (units[unit]) {
			run = 0;
			continue;
		}
		if (run == 0) {
			if ((base / UNIT_BYTES + unit) % alignment != 0)
				continue;
			start = unit;
		}
		if (++run == count)
			return start;
	}
	return unit_count;
}

struct region *region_new(enum region_kind kind, uint32_t count, uint32_t alignment)
{
	struct region *region = calloc(1, sizeof(*region));
	uint64_t first = region ? find_units(count, alignment) : unit_count;

	if (first == unit_count) {
		free(region);
		return NULL;
	}
	region->kind = kind;
	region->first = (uint32_t)first;
	region->units = count;
	region->base = base + first * UNIT_BYTES;
	region->id = next_id++;
	for (uint32_t i = 0; i < count; i++)
		units[first + i] = region;
	if (first == lowest_free)
		lowest_free += count;
	return region;
}

void region_free(struct region *region)
{
	if (region->written)
		madvise((void *)(region->base + space_shadow()), region->units * UNIT_BYTES,
			MADV_DONTNEED);
	for (uint32_t i = 0; i < region->units; i++)
		units[region->first + i] = NULL;
	if (region->first < lowest_free)
		lowest_free = region->first;
	free(region->small);
	free(region);
}
