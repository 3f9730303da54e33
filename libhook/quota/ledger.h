/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that this process holds of its tenant's quota, per card. There is no common counter: a
 * process writes only its own slots, and a quota holds because everyone sums all of them. kill -9
 * between any two writes costs nothing, for a dead process's slots are cleared as a whole.
 */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

/* Enter this process among the tenant's; again after a fork. NULL, or why not. Needs pages_open. */
const char *ledger_join(void);

/* Take `bytes` on `card`, before the driver is asked for them. False, and counted as denied, when
 * the quota has no room for them; then nothing was taken. */
bool ledger_reserve(unsigned card, uint64_t bytes);
void ledger_release(unsigned card, uint64_t bytes);

/* As ledger_reserve, but false, and nothing more, where that is not plain at first sight. */
bool ledger_reserve_at_once(unsigned card, uint64_t bytes);

/* As ledger_reserve, for memory of which `kept_bytes` are this process's already: its pool keeps
 * them, so the daemon has measured them beside what the ledger says. */
bool ledger_reserve_kept(unsigned card, uint64_t bytes, uint64_t kept_bytes);

/* The same for one context, at what a context takes on this card. */
bool ledger_reserve_context(unsigned card);

/* Count one that is there already, whatever the quota. False: this process has no slot. */
bool ledger_count_context(unsigned card);
void ledger_release_context(unsigned card);

/* A forked child holds nothing of what its parent does. */
void ledger_forget(void);

#endif
