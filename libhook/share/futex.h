/* SPDX-License-Identifier: Apache-2.0
 *
 * futex(2). errno is preserved; none of these functions is a cancellation point.
 */
#ifndef GPUSHARE_FUTEX_H
#define GPUSHARE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Whether only threads of this process use the word: that is cheaper for the kernel. */
enum futex_scope { FUTEX_OF_PROCESS, FUTEX_OF_ALL };

/* Wait while `word` is `seen`, until a wake-up or until CLOCK_MONOTONIC is `until_ns` (UINT64_MAX:
 * no limit). May return early: check again. A read-only page is sufficient. */
void futex_wait(
	const _Atomic uint32_t *word, uint32_t seen, uint64_t until_ns, enum futex_scope scope);

void futex_wake_all(const _Atomic uint32_t *word, enum futex_scope scope);

#endif
