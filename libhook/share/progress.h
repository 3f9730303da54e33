/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_PROGRESS_H
#define GPUSHARE_PROGRESS_H

#include <stdbool.h>

/* Work of this process on `card` has ended, all of it if `is_idle`: tell who waits for that. With
 * no lock. */
void progress_tell(unsigned card, bool is_idle);

#endif
