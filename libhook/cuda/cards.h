/* SPDX-License-Identifier: Apache-2.0
 *
 * From the driver's devices to the tenant's cards: by UUID, for CUDA_VISIBLE_DEVICES reorders
 * ordinals and hides devices.
 */
#ifndef GPUSHARE_CARDS_H
#define GPUSHARE_CARDS_H

#include <stdbool.h>

#include "filter.h"

/* Look at the driver's devices, once it is initialised; else its error. */
CUresult cards_find(void);

/* The card of a device. CUDA_ERROR_INVALID_DEVICE: there is no such device;
 * CUDA_ERROR_DEVICE_UNAVAILABLE: it was not granted. */
CUresult card_of_device(unsigned *card, CUdevice device);

/* The card of the calling thread's current context, or the driver's error where there is none. The
 * driver is not asked where there is only one card: without a context the call that follows fails
 * by itself. */
CUresult card_current(unsigned *card);

/* Memory of the machine, which no quota is about. */
bool location_is_host(const CUmemLocation *location);

/* The card of another location. One of a kind that is not known here counts as the current one's:
 * it may be a part of it. */
CUresult card_of_location(unsigned *card, const CUmemLocation *location);

/* The device on whose memory `stream` works. */
CUresult device_of_stream(CUdevice *device, CUstream stream);

#endif
