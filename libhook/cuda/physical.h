/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory without an address (virtual memory management).
 */
#ifndef GPUSHARE_PHYSICAL_H
#define GPUSHARE_PHYSICAL_H

void physical_before_fork(void);
void physical_after_fork_in_parent(void);
void physical_after_fork_in_child(void);

#endif
