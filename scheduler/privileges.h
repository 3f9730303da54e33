/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_SCHEDULER_PRIVILEGES_H
#define GPUSHARE_SCHEDULER_PRIVILEGES_H

/* Drop every capability except the one that opens tenants' files regardless of their owner. */
void privileges_drop(void);

#endif
