/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_SCHEDULER_PRIORITY_H
#define GPUSHARE_SCHEDULER_PRIORITY_H

/* Run before the machine's other programs, if that is allowed; returns the resulting priority as
 * text. */
const char *priority_raise(void);

#endif
