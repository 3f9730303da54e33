/* SPDX-License-Identifier: Apache-2.0
 *
 * The init process of a container that was created and not started.
 */
#ifndef GPUSHARE_RUNTIME_INIT_H
#define GPUSHARE_RUNTIME_INIT_H

#include <sys/types.h>

/* The child of this process that waits at the exec.fifo of container `id`; 0: there is none, -1:
 * there are several, or this kernel does not show a process's children. As a child that is not
 * reaped, its number stays its own. */
pid_t init_find(const char *id);

#endif
