/* SPDX-License-Identifier: Apache-2.0
 *
 * A process-local lock for stretches of a few nanoseconds, on paths whose total cost is that small.
 * Its holder never sleeps.
 */
#ifndef GPUSHARE_SIMULATOR_LATCH_H
#define GPUSHARE_SIMULATOR_LATCH_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

struct latch {
	atomic_bool taken;
};

static inline void latch_take(struct latch *latch)
{
	const struct timespec pause = {.tv_nsec = 50000};

	for (unsigned int tries = 0;
		atomic_exchange_explicit(&latch->taken, true, memory_order_acquire); tries++) {
		if (tries < 64)
			sched_yield();
		else
			nanosleep(&pause, NULL); /* the holder was preempted */
	}
}

static inline void latch_drop(struct latch *latch)
{
	atomic_store_explicit(&latch->taken, false, memory_order_release);
}

#endif
