/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of what was given, against a plain array.
 */
#include <string.h>
#include <unistd.h>

#include "quota/allocations.h"
#include "tenant.h"

static struct allocations table;

static struct allocation entry(uint64_t handle, uint64_t bytes)
{
	struct allocation allocation = {.handle = handle, .bytes = bytes};
	return allocation;
}

static bool add(uint64_t handle, uint64_t bytes)
{
	struct allocation allocation = entry(handle, bytes), stale;
	return allocations_add(&table, &allocation, &stale);
}

static void a_handle_given_again_returns_the_old(void)
{
	struct allocation first = entry(512, 10), second = entry(512, 20), stale, taken;

	CHECK(allocations_add(&table, &first, &stale) && stale.bytes == 0);
	CHECK(allocations_add(&table, &second, &stale) && stale.bytes == 10);
	CHECK(allocations_take(&table, 512, &taken) && taken.bytes == 20);
}

#define HANDLES 50000

/* Adds and takes at random among many, so that entries move and shards grow. */
static void agrees_with_an_array(void)
{
	static uint64_t model[HANDLES];
	unsigned seed = 1;
	struct allocation taken;

	for (int round = 0; round < 400000; round++) {
		unsigned i = (unsigned)rand_r(&seed) % HANDLES;
		uint64_t handle = 0x7f0000000000 + (uint64_t)i * 512;
		if (model[i]) {
			CHECK(allocations_take(&table, handle, &taken));
			CHECK(taken.bytes == model[i]);
			model[i] = 0;
		} else {
			CHECK(!allocations_find(&table, handle, &taken));
			model[i] = (uint64_t)round + 1;
			CHECK(add(handle, model[i]));
		}
	}
	for (unsigned i = 0; i < HANDLES; i++)
		CHECK(allocations_take(&table, 0x7f0000000000 + (uint64_t)i * 512, &taken) ==
			(model[i] != 0));
}

static bool is_odd(const struct allocation *allocation, void *freed_bytes)
{
	if (allocation->bytes % 2 == 0)
		return false;
	*(uint64_t *)freed_bytes += allocation->bytes;
	return true;
}

static void takes_all_that_end(void)
{
	uint64_t odd = 0, freed_bytes = 0;
	struct allocation taken;

	for (uint64_t i = 1; i <= 10000; i++) {
		CHECK(add(i, i));
		odd += i % 2 ? i : 0;
	}
	allocations_take_all(&table, is_odd, &freed_bytes);
	CHECK(freed_bytes == odd);
	for (uint64_t i = 1; i <= 10000; i++)
		CHECK(allocations_take(&table, i, &taken) == (i % 2 == 0));
}

static void found_by_any_of_its_addresses(void)
{
	struct allocation found;

	for (uint64_t i = 1; i <= 1000; i++)
		CHECK(add(i << 20, i));
	for (uint64_t i = 1; i <= 1000; i++) {
		CHECK(allocations_find_at(&table, i << 20, &found) && found.bytes == i);
		CHECK(allocations_find_at(&table, (i << 20) + i - 1, &found) && found.bytes == i);
		CHECK(!allocations_find_at(&table, (i << 20) + i, &found));
	}
	CHECK(!allocations_find_at(&table, 0, &found));
	for (uint64_t i = 1; i <= 1000; i++)
		CHECK(allocations_take(&table, i << 20, &found));
	CHECK(!allocations_find_at(&table, 1 << 20, &found));
}

int main(void)
{
	TEST(a_handle_given_again_returns_the_old);
	TEST(agrees_with_an_array);
	TEST(takes_all_that_end);
	TEST(found_by_any_of_its_addresses);
	return 0;
}
