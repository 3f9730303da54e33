/* SPDX-License-Identifier: Apache-2.0 */
#include "usage.h"

uint64_t orphaned_bytes(unsigned card)
{
	const struct gpushare_usage *usage = card_usage(card);
	const unsigned count = process_count();
	uint64_t most = 0;

	for (unsigned number = 0; number < count; number++) {
		uint64_t imported = atomic_load(&usage->imported[number]);
		if (imported > most)
			most = imported;
	}
	uint64_t exported = sum_of(usage->exported, count);
	return exported < most ? most - exported : 0;
}
