/* SPDX-License-Identifier: Apache-2.0 */
#include "usage.h"

uint64_t spared_bytes(unsigned card, uint64_t more)
{
	const struct gpushare_usage *usage = card_usage(card);
	const uint64_t limit = managed_limit_bytes(card);
	const unsigned count = limit ? process_count() : 0;
	uint64_t managed = more;

	for (unsigned number = 0; number < count; number++)
		managed += atomic_load(&usage->detail[number].bytes[GPUSHARE_KIND_MANAGED]);
	return managed < limit ? managed : limit;
}

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
