/* SPDX-License-Identifier: Apache-2.0 */
#include "spin.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#define LOOKS 64
#define PAUSE_MOST_NS 64000

/* A pause, not sched_yield: who waits may have a real-time priority, and the holder none. */
void spin_wait(spin_lock *lock)
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
