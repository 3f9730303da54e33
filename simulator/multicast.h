/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast objects: their handles are released like those of physical memory.
 */
#ifndef GPUSHARE_SIMULATOR_MULTICAST_H
#define GPUSHARE_SIMULATOR_MULTICAST_H

#include "memory.h"
#include "physical.h"

/* With the space's latch held: what cuMemRelease does with an object's handle; false for
 * another. */
bool multicast_release(CUmemGenericAllocationHandle handle);

#endif
