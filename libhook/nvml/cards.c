/* SPDX-License-Identifier: Apache-2.0 */
#include "cards.h"

#include <string.h>

#include "quota/pages.h"

#define UUID_BYTES 96 /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */

nvmlReturn_t card_of_device(unsigned *card, nvmlDevice_t device)
{
	char uuid[UUID_BYTES];
	nvmlReturn_t result = REAL(nvmlDeviceGetUUID)(device, uuid, sizeof(uuid));

	if (result != NVML_SUCCESS)
		return result;
	for (*card = 0; *card < pages.card_count; ++*card)
		if (strcmp(grant_card(*card)->uuid, uuid) == 0)
			return NVML_SUCCESS;
	return NVML_ERROR_NO_PERMISSION;
}

static bool has_granted_instance(nvmlDevice_t device)
{
	unsigned int most, card;

	if (REAL(nvmlDeviceGetMaxMigDeviceCount)(device, &most) != NVML_SUCCESS)
		return false;
	for (unsigned int index = 0; index < most; index++) {
		nvmlDevice_t instance;
		if (REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, &instance) ==
				NVML_SUCCESS &&
			card_of_device(&card, instance) == NVML_SUCCESS)
			return true;
	}
	return false;
}

bool device_is_shown(nvmlDevice_t device)
{
	unsigned card;

	return card_of_device(&card, device) == NVML_SUCCESS || has_granted_instance(device);
}
