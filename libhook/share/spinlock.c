/* SPDX-License-Identifier: Apache-2.0 */
#include "spinlock.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#define LOOKS 64
#define PAUSE_MOST_NS 64000

/* Sleeps instead of calling sched_yield: the waiting thread may have a real-time priority that the
 * holder does not have. */
void spinlock_wait(spinlock *lock)
{
	struct timespec pause = {.tv_nsec = 1000};
	int saved = errno, cancellation;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
	for (unsigned look = 1;; look++) {
		if (atomic_load_explicit(lock, memory_order_relaxed) == 0 &&
			atomic_exchange_explicit(lock, 1, memory_order_acquire) == 0)
			break;
		if (look % LOOKS != 0)
			continue;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < PAUSE_MOST_NS)
			pause.tv_nsec *= 2;
	}
	pthread_setcancelstate(cancellation, NULL);
	errno = saved;
}
