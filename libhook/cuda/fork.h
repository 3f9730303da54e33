/* SPDX-License-Identifier: Apache-2.0
 *
 * A forked child is another process: it holds nothing of the quota that its parent holds.
 */
#ifndef GPUSHARE_FORK_H
#define GPUSHARE_FORK_H

/* Handle every fork from now on. */
void fork_watch(void);

#endif
