/* SPDX-License-Identifier: Apache-2.0
 *
 * Physical memory without an address (virtual memory management). Its size is a multiple of the
 * granularity, or the driver refuses it, so it is exactly what the driver takes.
 */
#include "cards.h"
#include "charge.h"

CUDA(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,
			  const CUmemAllocationProp *properties, unsigned long long flags))
{
	struct charge charge;
	unsigned card;

	/* The host's memory is not ours to share out, and without properties it is an error. */
	if (!properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return REAL(cuMemCreate)(handle, bytes, properties, flags);
	CUresult result = card_of_device(&card, properties->location.id);
	if (result == CUDA_SUCCESS)
		result = charge_reserve(&charge, card, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemCreate)(handle, bytes, properties, flags);
	return charge_settle(&charge, result, &physical, handle);
}

CUDA(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
	return CHARGE_FREE(&physical, handle, REAL(cuMemRelease)(handle));
}
