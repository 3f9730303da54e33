/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a checkpointed process. All that it had on its cards becomes host memory of its
 * own, page by page, for which its memory cgroup is charged. What was written is moved there: a
 * call that would still use the card would read zeros.
 */
#include "checkpoint.h"

#include "clock.h"
#include "driver.h"
#include "memory.h"
#include "physical.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096
#define STEP_BYTES (UINT64_C(16) << 20) /* that are copied between two looks at the clock */

static char *copy;
static uint64_t copy_bytes;

/* aarch64: since driver 595. */
static bool architecture_is_supported(void)
{
#if defined(__aarch64__)
	return atoi(device->header.driver_version) >= 595;
#else
	return true;
#endif
}

CUresult checkpoint_supported(void)
{
	REQUIRE(architecture_is_supported() && !managed_exists(), CUDA_ERROR_NOT_SUPPORTED);
	for (uint32_t i = 0; i < device_entries(); i++) {
		struct sim_card *card = &device->cards[i];

		REQUIRE(!card->shares[tag_process(process_tag())].mps_client,
			CUDA_ERROR_NOT_SUPPORTED);
		REQUIRE(!checkpoint_concerns(card) || card_profile(card)->parent == 0,
			CUDA_ERROR_NOT_SUPPORTED);
	}
	return CUDA_SUCCESS;
}

/* Sleep until `bytes` of a copy that began then would have been copied. */
static void pace(const struct sim_card *card, uint64_t began_ns, uint64_t bytes)
{
	const uint64_t rate = card_profile(card)->checkpoint_bytes_per_second;
	uint64_t now = clock_ns(), due;

	if (rate == 0)
		return;
	due = began_ns + duration_scaled((uint64_t)((double)bytes * 1e9 / (double)rate));
	if (due > now) {
		const struct timespec pause = {.tv_sec = (time_t)((due - now) / 1000000000),
			.tv_nsec = (long)((due - now) % 1000000000)};

		nanosleep(&pause, NULL);
	}
}

/* Charge for `bytes` of the copy from `offset` on, in the time that copying takes. */
static void fill(const struct sim_card *card, uint64_t offset, uint64_t bytes)
{
	const uint64_t began = clock_ns();

	if (copy == NULL) /* and `bytes` is 0 */
		return;
	for (uint64_t at = 0; at < bytes; at += STEP_BYTES) {
		const uint64_t end = at + STEP_BYTES < bytes ? at + STEP_BYTES : bytes;

		for (uint64_t page = at; page < end; page += PAGE_BYTES)
			*(volatile char *)(copy + offset + page) = 0;
		pace(card, began, end);
	}
}

static void move_page(char *to, char *from)
{
	static const char zeros[PAGE_BYTES];

	if (memcmp(from, zeros, PAGE_BYTES) != 0)
		memcpy(to, from, PAGE_BYTES);
}

/* A region whose contents are private pages at its addresses in the shadow. The rest is in files or
 * on the host. */
static bool is_movable(const struct region *region)
{
	switch (region->kind) {
	case REGION_WHOLE:
	case REGION_SHARED:
	case REGION_POOL:
	case REGION_GRAPH:
		return region->written && !region->ipc;
	default:
		return false;
	}
}

struct contents {
	bool leaves;   /* the card */
	uint64_t used; /* of the copy */
};

static void move_region(struct region *region, void *data)
{
	struct contents *contents = data;
	char *at = (char *)(region->base + space_shadow());
	const uint64_t bytes = region->units * UNIT_BYTES;

	/* What does not fit is memory that no card counts, such as that of idle graphs. */
	if (!is_movable(region) || bytes > copy_bytes - contents->used)
		return;
	for (uint64_t page = 0; page < bytes; page += PAGE_BYTES) {
		char *kept = copy + contents->used + page;

		move_page(contents->leaves ? kept : at + page, contents->leaves ? at + page : kept);
	}
	if (contents->leaves)
		madvise(at, bytes, MADV_DONTNEED);
	contents->used += bytes;
}

static void move_contents(bool leaves)
{
	struct contents contents = {.leaves = leaves};

	space_take();
	regions_visit(move_region, &contents);
	space_drop();
}

static void leave_card(struct sim_card *card)
{
	struct sim_share *own = &card->shares[tag_process(process_tag())];

	card_lock(card);
	own->evicted_bytes = own->used_bytes;
	own->evicted_contexts = own->contexts;
	own->contexts = 0;
	card_release(card, own->used_bytes);
	card_unlock(card);
}

CUresult checkpoint_evict(void)
{
	const uint32_t own = tag_process(process_tag());
	uint64_t offset = 0;

	copy_bytes = 0;
	for (uint32_t i = 0; i < device_entries(); i++)
		copy_bytes += device->cards[i].shares[own].used_bytes;
	copy = copy_bytes ? mmap(NULL, copy_bytes, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
			  : NULL;
	REQUIRE(copy != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
	for (uint32_t i = 0; i < device_entries(); i++) {
		const struct sim_card *card = &device->cards[i];
		const uint64_t bytes = card->shares[own].used_bytes;

		fill(card, offset, bytes);
		offset += bytes;
	}
	move_contents(true);
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (checkpoint_concerns(&device->cards[i]))
			leave_card(&device->cards[i]);
	}
	physicals_part();
	return CUDA_SUCCESS;
}

static bool return_to_card(struct sim_card *card)
{
	struct sim_share *own = &card->shares[tag_process(process_tag())];
	bool fits;

	card_lock(card);
	fits = card_reserve(card, own->evicted_bytes);
	if (fits) {
		own->contexts = (uint32_t)own->evicted_contexts;
		own->evicted_bytes = own->evicted_contexts = 0;
	}
	card_unlock(card);
	return fits;
}

CUresult checkpoint_return(void)
{
	const uint32_t own = tag_process(process_tag());
	uint64_t bytes[SIM_CARDS] = {0};

	for (uint32_t i = 0; i < device_entries(); i++)
		bytes[i] = device->cards[i].shares[own].evicted_bytes;
	for (uint32_t i = 0; i < device_entries(); i++) {
		if (!checkpoint_concerns(&device->cards[i]) || return_to_card(&device->cards[i]))
			continue;
		while (i-- > 0) {
			if (checkpoint_concerns(&device->cards[i]))
				leave_card(&device->cards[i]);
		}
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	move_contents(false);
	for (uint32_t i = 0; i < device_entries(); i++)
		pace(&device->cards[i], clock_ns(), bytes[i]);
	if (copy)
		munmap(copy, copy_bytes);
	copy = NULL;
	return CUDA_SUCCESS;
}
