/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's grant file, of which the gates are ours to write. gpushared made it, and the tenant
 * has it read-only, so that it may be mapped.
 */
#ifndef GPUSHARE_SCHEDULER_PAGE_H
#define GPUSHARE_SCHEDULER_PAGE_H

#include "card.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct page {
	unsigned char *map;
	size_t bytes; /* as far as its cards reach */
};

/* What stood in a gate when it was taken over, of an earlier scheduler's: it goes on from there. */
struct page_before {
	uint64_t charged_ns, windows, overruns, wanted_ns;
};

/* Map the grant file in `directory`, of a tenant `key` with `card_count` cards; 0 or an errno:
 * EPROTO where its layout is another version's, EINVAL where it is not that tenant's. */
int page_open(struct page *page, int directory, const char *key, uint32_t card_count);
void page_close(struct page *page);

/* The gate of the tenant's card `number`. */
struct gpushare_gate *page_gate(const struct page *page, uint32_t number);
/* Whether the page says that card `number` is `uuid`. */
bool page_is_of(const struct page *page, uint32_t number, const char *uuid);

void gate_before(const struct gpushare_gate *gate, struct page_before *before);
/* Have the page say what was decided, and wake who waits where anything that concerns them is new.
 */
void gate_write(
	struct gpushare_gate *to, const struct gate *decided, const struct page_before *before);
/* `until_ns`: as if it had been looked at then, see GPUSHARE_GATE_STALE_NS. */
void gate_beat(struct gpushare_gate *gate, uint64_t busy_ns, uint64_t until_ns);

#endif
