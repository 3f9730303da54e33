/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of a tenant that is evicted: its GPU memory is in host memory, and the driver would block
 * every call until gpushared unlocks the process. So no call gets as far: it asks gpushared for the
 * restore, and waits for the word `evicted` of the grant page to be 0.
 *
 * gpushared sets the word, waits a moment, and locks the process then. A call that has looked just
 * before blocks in the driver, like any call under NVIDIA's own checkpoint utility, and asks for
 * nothing; the next call of another thread does.
 */
#ifndef GPUSHARE_CUDA_EVICTED_H
#define GPUSHARE_CUDA_EVICTED_H

#include "share/gate.h"

/* From now on; needs pages_open. */
void evicted_watch(void);

/* The library's own thread does not ask for the restore: the program has no use for it. */
void evicted_never_ask(void);

/* Wait until the tenant is not evicted. Any lock may be held: gpushared takes none of them, another
 * thread that waits for it could not call the driver either, and the restore has been asked for.
 * Not a cancellation point; signal handlers run. */
void evicted_wait(void);

static inline bool is_evicted(void)
{
	const _Atomic uint32_t *word =
		atomic_load_explicit(&gate_line.evicted, memory_order_relaxed);

	return __builtin_expect(atomic_load_explicit(word, memory_order_relaxed) != 0, 0);
}

static inline void evicted_look(void)
{
	if (is_evicted())
		evicted_wait();
}

void evicted_after_fork_in_child(void);

#endif
