/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps the driver's devices to the tenant's cards: by UUID, because CUDA_VISIBLE_DEVICES reorders
 * ordinals and hides devices.
 */
#ifndef GPUSHARE_CARDS_H
#define GPUSHARE_CARDS_H

#include <stdbool.h>

#include "interpose.h"

/* Before cuInit: a container that may be moved has the nodes of other cards, and gpushared names
 * its own in CUDA_VISIBLE_DEVICES. After a move that is the card that it came from: name the
 * granted one. Any other value is a program's own, which the driver reads. */
void cards_make_visible(void);

/* Read the driver's devices once it is initialized; otherwise return its error. */
CUresult cards_find(void);

/* The card of a device. CUDA_ERROR_INVALID_DEVICE: there is no such device;
 * CUDA_ERROR_DEVICE_UNAVAILABLE: it was not granted. */
CUresult card_of_device(unsigned *card, CUdevice device);

/* The card of the calling thread's current context, or the driver's error if there is none. With a
 * single card the driver is not called: without a context, the call that follows fails anyway. */
CUresult card_current(unsigned *card);

/* Host memory, which is not subject to a quota. */
bool location_is_host(const CUmemLocation *location);

/* The card of another location. A location of unknown kind counts as the current card's, because it
 * may be part of it. */
CUresult card_of_location(unsigned *card, const CUmemLocation *location);

/* The device whose memory `stream` uses. */
CUresult device_of_stream(CUdevice *device, CUstream stream);

#endif
