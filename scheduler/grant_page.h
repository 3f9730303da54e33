/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's grant file, whose gates this process writes. gpushared created it, and the tenant has
 * it read-only, so it is safe to map.
 */
#ifndef GPUSHARE_SCHEDULER_GRANT_PAGE_H
#define GPUSHARE_SCHEDULER_GRANT_PAGE_H

#include "card.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grant_page {
	unsigned char *map;
	size_t bytes; /* up to the last of its cards */
};

/* The totals in a gate when it was taken over from an earlier scheduler: they continue from
 * there. */
struct gate_totals {
	uint64_t charged_ns, windows, overruns, demand_ns, claimed_ns, ungated_ns;
};

/* Map the grant file in `directory`, of a tenant `key` with `card_count` cards; 0 or an errno:
 * EPROTO if its layout is another version's, EINVAL if it is not that tenant's. */
int grant_page_open(struct grant_page *page, int directory, const char *key, uint32_t card_count);
void grant_page_close(struct grant_page *page);

/* The gate of the tenant's card `number`. */
struct gpushare_gate *grant_page_gate(const struct grant_page *page, uint32_t number);
/* Whether the page's card `number` is `uuid`. */
bool grant_page_is_of(const struct grant_page *page, uint32_t number, const char *uuid);

void gate_totals_read(const struct gpushare_gate *gate, struct gate_totals *totals);
/* Write the decision to the page, and wake waiting processes if anything that concerns them has
 * changed. */
void gate_write(
	struct gpushare_gate *to, const struct gate *decided, const struct gate_totals *totals);
/* `until_ns`: the heartbeat is as fresh as at that time, see GPUSHARE_GATE_STALE_NS. */
void gate_beat(struct gpushare_gate *gate, uint64_t busy_ns, uint64_t until_ns);

#endif
