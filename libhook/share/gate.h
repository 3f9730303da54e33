/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate before everything that starts work on a card. The scheduler opens and closes it in the
 * grant page; a launch through an open gate costs one relaxed load.
 */
#ifndef GPUSHARE_GATE_H
#define GPUSHARE_GATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "gpushare_abi.h"

/* The word to look at: of the tenant's only card, or one that is never open where there are several
 * and each must be looked at. */
#pragma GCC visibility push(hidden)
extern const _Atomic uint32_t *_Atomic gate_word;
#pragma GCC visibility pop

/* Start looking at the grant page. Needs pages_open. */
void gate_watch(void);

/* Not open at first sight. */
void gate_wait(void);

static inline void gate_pass(void)
{
	const _Atomic uint32_t *word = atomic_load_explicit(&gate_word, memory_order_relaxed);

	if (__builtin_expect(
		    atomic_load_explicit(word, memory_order_relaxed) != GPUSHARE_GATE_OPEN, 0))
		gate_wait();
}

#endif
