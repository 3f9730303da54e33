/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory that other processes of the container have opened, or that this process opened.
 */
#ifndef GPUSHARE_IPC_H
#define GPUSHARE_IPC_H

#include "interpose.h"

/* A context was destroyed, the primary one of `card` if 0, and everything opened in it was
 * closed. */
void ipc_end_context(uint64_t context, unsigned card);

void ipc_before_fork(void);
void ipc_after_fork_in_parent(void);
void ipc_after_fork_in_child(void);

#endif
