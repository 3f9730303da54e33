/* SPDX-License-Identifier: Apache-2.0
 *
 * A forked child is another process: nothing that its parent holds of the quota is the child's.
 */
#ifndef GPUSHARE_FORK_H
#define GPUSHARE_FORK_H

/* Look after every fork from now on. */
void fork_watch(void);

#endif
