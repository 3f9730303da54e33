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
