/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory that other processes of the container opened, or that is theirs and opened here.
 */
#ifndef GPUSHARE_IPC_H
#define GPUSHARE_IPC_H

#include "filter.h"

/* A context has ended, `card`'s primary one if 0, and closed what was opened in it. */
void ipc_end_context(uint64_t context, unsigned card);

void ipc_before_fork(void);
void ipc_after_fork_in_parent(void);
void ipc_after_fork_in_child(void);

#endif
