/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock that is held for some tens of instructions and never around a call of anybody else: taken
 * and dropped by every counted launch, so one atomic exchange and one store.
 */
#ifndef GPUSHARE_SPIN_H
#define GPUSHARE_SPIN_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint32_t spin_lock;

/* Until the holder, who may be off the processor, has dropped it. errno is left as it was. */
void spin_wait(spin_lock *lock);

static inline void spin_take(spin_lock *lock)
{
	if (__builtin_expect(atomic_exchange_explicit(lock, 1, memory_order_acquire) != 0, 0))
		spin_wait(lock);
}

static inline void spin_drop(spin_lock *lock)
{
	atomic_store_explicit(lock, 0, memory_order_release);
}

#endif
