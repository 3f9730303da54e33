/* SPDX-License-Identifier: Apache-2.0
 *
 * What is remembered of how long pieces of work take.
 */
#include "share/estimate.h"

#include "expect.h"

static struct estimates table;

/* Pointers as the driver hands them out: some kilobytes apart. */
static const void *kernel(unsigned number)
{
	return (const void *)(UINT64_C(0x7f3a10004560) + number * UINT64_C(0x1c40));
}

static uint64_t size_of_class(unsigned number)
{
	return UINT64_C(128) * (4 + number % 4) << number / 4;
}

/* A network's worth: what was learned of one must not cost another its place. */
static void many_kernels_of_many_sizes_are_all_remembered(void)
{
	for (unsigned what = 0; what < 20; what++)
		for (unsigned size = 0; size < 16; size++) {
			const uint16_t place =
				estimate_place(&table, 0, kernel(what), size_of_class(size));
			estimate_learn(&table, place, 1, 0, 1000 * what + size, 1);
		}
	for (unsigned what = 0; what < 20; what++)
		for (unsigned size = 0; size < 16; size++) {
			const uint16_t place =
				estimate_place(&table, 0, kernel(what), size_of_class(size));
			EXPECT(table.place[place].samples == 1);
			EXPECT(table.place[place].ns == 1000 * what + size);
		}
}

static struct estimates fresh;

/* What a machine of tests learns by: one kernel alone, in samples. */
static uint64_t learned(uint64_t first_ns, uint64_t then_ns, unsigned samples)
{
	fresh = (struct estimates){0};
	const uint16_t place = estimate_place(&fresh, 0, kernel(0), 1);
	estimate_learn(&fresh, place, 1, 0, first_ns, 1);
	for (unsigned i = 0; i < samples; i++)
		estimate_learn(&fresh, place, 1, fresh.place[place].ns, then_ns, 1);
	return fresh.place[place].ns;
}

static void the_first_sample_is_believed_and_later_ones_are_weighed(void)
{
	EXPECT_EQUAL(learned(1000, 0, 0), 1000);
	EXPECT(learned(1000, 2000, 1) > 1000 && learned(1000, 2000, 1) < 1500);
	EXPECT(learned(1000, 2000, 40) > 1950 && learned(1000, 2000, 40) <= 2000);
	EXPECT(learned(2000, 1000, 40) < 1050 && learned(2000, 1000, 40) >= 1000);
}

static void what_is_destroyed_is_forgotten_in_all_its_sizes(void)
{
	const uint16_t kept = estimate_place(&table, 0, kernel(1), size_of_class(0));

	estimate_forget(&table, kernel(0));
	for (unsigned size = 0; size < 16; size++)
		EXPECT_EQUAL(table.place[estimate_place(&table, 0, kernel(0), size_of_class(size))]
				     .samples,
			0);
	EXPECT_EQUAL(table.place[kept].samples, 1);
}

/* More than it has places for: it goes on, and knows the last. */
static void a_full_table_goes_on(void)
{
	uint16_t place = 0;

	for (unsigned what = 0; what < 3 * ESTIMATES; what++) {
		place = estimate_place(&fresh, 0, kernel(what), 1);
		estimate_learn(&fresh, place, 1, 0, what + 1, 1);
	}
	EXPECT_EQUAL(fresh.place[place].ns, 3 * ESTIMATES);
	EXPECT_EQUAL(estimate_place(&fresh, 0, kernel(3 * ESTIMATES - 1), 1), place);
}

int main(void)
{
	many_kernels_of_many_sizes_are_all_remembered();
	the_first_sample_is_believed_and_later_ones_are_weighed();
	what_is_destroyed_is_forgotten_in_all_its_sizes();
	a_full_table_goes_on();
	return 0;
}
