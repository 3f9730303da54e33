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

/* A group of two kinds that took twice as long as expected: both are thought longer. */
static void what_ran_together_is_corrected_in_proportion(void)
{
	fresh = (struct estimates){0};
	const uint16_t shorter = estimate_place(&fresh, 0, kernel(0), 1);
	const uint16_t longer = estimate_place(&fresh, 0, kernel(1), 1);
	estimate_learn(&fresh, shorter, 1, 0, 1000, 1);
	estimate_learn(&fresh, longer, 1, 0, 3000, 1);
	for (unsigned i = 0; i < 60; i++) {
		const uint64_t expected = fresh.place[shorter].ns + fresh.place[longer].ns;
		estimate_learn(&fresh, shorter, 1, expected, 8000, 0);
		estimate_learn(&fresh, longer, 1, expected, 8000, 0);
	}
	const uint64_t sum = fresh.place[shorter].ns + fresh.place[longer].ns;
	EXPECT(sum > 7900 && sum <= 8000);
	EXPECT(fresh.place[longer].ns / fresh.place[shorter].ns == 3 ||
		fresh.place[longer].ns / fresh.place[shorter].ns == 2);
}

static void what_was_never_measured_is_not_learned_from_hints(void)
{
	fresh = (struct estimates){0};
	const uint16_t place = estimate_place(&fresh, 0, kernel(0), 1);
	estimate_learn(&fresh, place, 1, 5000, 9000, 0);
	EXPECT_EQUAL(fresh.place[place].samples, 0);
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

/* The functions of a module that is loaded again are other ones. */
static void what_was_never_measured_takes_as_long_as_the_last_that_was_not(void)
{
	fresh = (struct estimates){0};
	const struct estimate *entry = &fresh.place[estimate_place(&fresh, 0, kernel(0), 1)];
	EXPECT_EQUAL(estimate_of(&fresh, entry, 500), 500);
	for (unsigned what = 1; what < 4; what++)
		estimate_learn_unknown(&fresh, estimate_place(&fresh, 0, kernel(what), 1), 50000);
	EXPECT_EQUAL(estimate_of(&fresh, entry, 500), 50000);
	for (unsigned what = 4; what < 60; what++)
		estimate_learn_unknown(&fresh, estimate_place(&fresh, 0, kernel(what), 1), 1000);
	EXPECT(estimate_of(&fresh, entry, 500) < 2000);
	/* A copy is no kernel. */
	entry = &fresh.place[estimate_place(&fresh, 2, kernel(0), 1)];
	EXPECT_EQUAL(estimate_of(&fresh, entry, 500), 500);
	/* One that was measured is known by itself. */
	const uint16_t place = estimate_place(&fresh, 0, kernel(60), 1);
	estimate_learn(&fresh, place, 1, 0, 70, 1);
	EXPECT_EQUAL(estimate_of(&fresh, &fresh.place[place], 500), 70);
}

int main(void)
{
	many_kernels_of_many_sizes_are_all_remembered();
	the_first_sample_is_believed_and_later_ones_are_weighed();
	what_ran_together_is_corrected_in_proportion();
	what_was_never_measured_is_not_learned_from_hints();
	what_is_destroyed_is_forgotten_in_all_its_sizes();
	a_full_table_goes_on();
	what_was_never_measured_takes_as_long_as_the_last_that_was_not();
	return 0;
}
