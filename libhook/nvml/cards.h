/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps NVML's devices to the tenant's cards, by UUID.
 */
#ifndef GPUSHARE_NVML_CARDS_H
#define GPUSHARE_NVML_CARDS_H

#include <stdbool.h>

#include "interpose.h"

/* NVML_ERROR_NO_PERMISSION: the device was not granted; otherwise like nvmlDeviceGetUUID. */
nvmlReturn_t card_of_device(unsigned *card, nvmlDevice_t device);

/* Granted, or the card of a granted instance: the latter has no card_of_device. */
bool device_is_shown(nvmlDevice_t device);

#endif
