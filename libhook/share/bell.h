/* SPDX-License-Identifier: Apache-2.0
 *
 * A byte into the tenant's FIFO, which makes the scheduler look. Nothing here waits or fails: one
 * that is full has been heard, one that is not there is tried again later.
 */
#ifndef GPUSHARE_BELL_H
#define GPUSHARE_BELL_H

/* With no lock of ours held: it asks the kernel. errno is left as it was. */
void bell_ring(void);

void bell_before_fork(void);
void bell_after_fork(void);

#endif
