/* SPDX-License-Identifier: Apache-2.0
 *
 * futex(2). errno is left as it was; none of these is a cancellation point.
 */
#ifndef GPUSHARE_FUTEX_H
#define GPUSHARE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Whether the word is looked at by threads of this process only: cheaper for the kernel. */
enum futex_scope { FUTEX_OF_PROCESS, FUTEX_OF_ALL };

/* While `word` is `seen`, until somebody wakes or CLOCK_MONOTONIC is `until_ns` (UINT64_MAX: no
 * end). Returns early, too: look again. A page that is mapped read-only will do. */
void futex_wait(
	const _Atomic uint32_t *word, uint32_t seen, uint64_t until_ns, enum futex_scope scope);

void futex_wake_all(const _Atomic uint32_t *word, enum futex_scope scope);

#endif
