/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_SCHEDULER_PRIVILEGES_H
#define GPUSHARE_SCHEDULER_PRIVILEGES_H

/* Give up every capability but the one that opens tenants' files, whoever owns those. */
void privileges_drop(void);

#endif
