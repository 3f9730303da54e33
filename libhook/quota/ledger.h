/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory that this process holds of its tenant's quota, per card. There is no shared counter:
 * each process writes only its own elements, and the quota is enforced because every process sums
 * all of them. A process may be killed between any two writes, because everything that a dead
 * process held is cleared at once.
 */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

/* Reserve `bytes` on `card` before calling the driver. False if the quota has no room for them:
 * then nothing is reserved, and the refusal is counted. */
bool ledger_reserve(unsigned card, enum gpushare_kind kind, uint64_t bytes);
void ledger_release(unsigned card, enum gpushare_kind kind, uint64_t bytes);

/* Count memory that the driver has already allocated, regardless of the quota. False: this process
 * has no number, so nothing can be counted. */
bool ledger_count(unsigned card, enum gpushare_kind kind, uint64_t bytes);

/* Reserve a context at its size on this card, and return the size: the daemon may measure a
 * different one while the context lives. */
bool ledger_reserve_context(unsigned card, uint64_t *bytes);

/* Count a context that already exists, at the part of its size that the daemon has not measured
 * yet. */
bool ledger_count_context(unsigned card, uint64_t *bytes);
void ledger_release_context(unsigned card, uint64_t bytes);

/* Memory of this process that others may map from now on, and memory of others that this process
 * maps. Neither is checked against the quota: its creator reserved it. */
void ledger_export(unsigned card, uint64_t bytes);
void ledger_unexport(unsigned card, uint64_t bytes);
void ledger_import(unsigned card, uint64_t bytes);
void ledger_unimport(unsigned card, uint64_t bytes);

/* Around a call of the driver that exports or imports memory: from a success on, this process
 * counts as one that shares memory, until it exits. Noted before the call, because gpushared asks
 * once no call can be in progress. */
void ledger_share(void);
void ledger_shared(bool succeeded);

/* For `gpushare why`: how much of the pools' memory is free. */
void ledger_note_kept(unsigned card, uint64_t bytes);

/* The callback receives the card before a refusal is decided, with no lock held. It may release
 * memory that the driver has taken back without this process knowing. */
void ledger_before_refusal(void (*refresh)(unsigned card));

#endif
