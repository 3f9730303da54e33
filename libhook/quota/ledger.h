/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that this process holds of its tenant's quota, per card. There is no common counter: a
 * process writes only its own elements, and a quota holds because everyone sums all of them. kill
 * -9 between any two writes costs nothing, for what a dead process held is cleared as a whole.
 */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

/* Take `bytes` on `card`, before the driver is asked for them. False, and counted as denied, when
 * the quota has no room for them; then nothing was taken. */
bool ledger_reserve(unsigned card, enum gpushare_kind kind, uint64_t bytes);
void ledger_release(unsigned card, enum gpushare_kind kind, uint64_t bytes);

/* Count what the driver has given already, whatever the quota says of it. False: this process has
 * no number, so nothing can be counted. */
bool ledger_count(unsigned card, enum gpushare_kind kind, uint64_t bytes);

/* Reserve a context at its price on this card, and tell the price: the daemon may learn another
 * while the context lives. */
bool ledger_reserve_context(unsigned card, uint64_t *bytes);

/* Count one that is there already, at as much of its price as the daemon has not measured yet. */
bool ledger_count_context(unsigned card, uint64_t *bytes);
void ledger_release_context(unsigned card, uint64_t bytes);

/* Memory of ours that others may map from now on, and others' that we map. Neither is decided
 * upon: what is exported was reserved by its maker, and what is imported too. */
void ledger_export(unsigned card, uint64_t bytes);
void ledger_unexport(unsigned card, uint64_t bytes);
void ledger_import(unsigned card, uint64_t bytes);
void ledger_unimport(unsigned card, uint64_t bytes);

/* For `gpushare why`: how much of what pools hold is free. */
void ledger_note_kept(unsigned card, uint64_t bytes);

/* Called with the card before a refusal is decided, and not with any lock held: what this process
 * holds of which it does not know that the driver has taken it back may be released there. */
void ledger_before_refusal(void (*refresh)(unsigned card));

#endif
