/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_PROGRESS_H
#define GPUSHARE_PROGRESS_H

#include <stdbool.h>

/* Work of this process on `card` has finished, all of it if `is_idle`: wake the threads that wait
 * for it. With no lock. */
void progress_report(unsigned card, bool is_idle);

#endif
