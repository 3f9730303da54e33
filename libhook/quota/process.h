/* SPDX-License-Identifier: Apache-2.0
 *
 * A process of the tenant, as the kernel reports it.
 */
#ifndef GPUSHARE_PROCESS_H
#define GPUSHARE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* When `pid` was started, in clock ticks since boot (proc(5), stat, field 22). Together with the
 * PID it identifies a process uniquely. 0: there is no such process, or it has exited and was not
 * reaped yet. `pid` 0 is this process: in a PID namespace of its own whose /proc is an outer one
 * (unshare --pid), its number is another process's there. */
uint64_t process_starttime(pid_t pid);

#endif
