/* SPDX-License-Identifier: Apache-2.0
 *
 * Wakes the scheduler with a byte in the tenant's FIFO. Nothing here waits or fails: a full FIFO
 * already wakes the scheduler, and a missing one is opened again later.
 */
#ifndef GPUSHARE_WAKEUP_H
#define GPUSHARE_WAKEUP_H

/* With none of this library's locks held: makes system calls. errno is preserved. */
void wakeup_send(void);

void wakeup_before_fork(void);
void wakeup_after_fork(void);

#endif
