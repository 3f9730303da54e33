/* SPDX-License-Identifier: Apache-2.0
 *
 * A process of the tenant, as the kernel knows it.
 */
#ifndef GPUSHARE_PROCESS_H
#define GPUSHARE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* When `pid` was started, in clock ticks since boot (proc(5), stat, field 22): with the pid it
 * names one process for ever. 0: no such process, or it has ended and only waits for its parent. */
uint64_t process_starttime(pid_t pid);

#endif
