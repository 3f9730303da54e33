/* SPDX-License-Identifier: Apache-2.0
 *
 * The primary context of each card.
 */
#ifndef GPUSHARE_CONTEXT_PRIMARY_H
#define GPUSHARE_CONTEXT_PRIMARY_H

#include "interpose.h"

/* Count the device's primary context if it exists and is not counted yet. */
void primary_meet(CUdevice device);

void primaries_after_fork_in_child(void);

#endif
