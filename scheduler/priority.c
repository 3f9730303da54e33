/* SPDX-License-Identifier: Apache-2.0
 *
 * While this program waits for a processor, a card may idle, and programs that use a card tend to
 * poll on all processors. Its work takes microseconds and is bounded (wakeup.c, SOONEST_NS), so it
 * may run before them.
 */
#include "priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NICE (-15)
/* Processor time without a wait: more is an endless loop. The kernel then kills this process
 * (SIGXCPU), and gpushared starts another (sched(7), RLIMIT_RTTIME). */
#define LOOP_US 200000

const char *priority_raise(void)
{
	const struct sched_param lowest = {.sched_priority = 1};
	const struct rlimit loop = {.rlim_cur = LOOP_US, .rlim_max = LOOP_US};

	/* Not sched_setscheduler(3): musl's always fails, because Linux applies it to a thread. */
	if (setrlimit(RLIMIT_RTTIME, &loop) == 0 &&
		syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &lowest) == 0)
		return "SCHED_FIFO";
	if (setpriority(PRIO_PROCESS, 0, NICE) == 0)
		return "nice -15";
	return "no priority";
}
