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

int main(void)
{
	many_kernels_of_many_sizes_are_all_remembered();
	return 0;
}
