/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock that is held for some tens of instructions and never around a call into other code. Every
 * counted launch takes and releases it, so this costs one atomic exchange and one store.
 */
#ifndef GPUSHARE_SPINLOCK_H
#define GPUSHARE_SPINLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint32_t spinlock;

/* Wait until the holder, which may not be running, has released it. errno is preserved. */
void spinlock_wait(spinlock *lock);

static inline void spinlock_lock(spinlock *lock)
{
	if (__builtin_expect(atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0, 0))
		spinlock_wait(lock);
}

static inline bool spinlock_try(spinlock *lock)
{
	return __builtin_expect(atomic_exchange_explicit(lock, 1, memory_order_acquire) == 0, 1);
}

static inline void spinlock_unlock(spinlock *lock)
{
	atomic_store_explicit(lock, 0, memory_order_release);
}

#endif
