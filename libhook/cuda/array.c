/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "array_size.h"
#include "channel/log.h"
#include "charge.h"
#include "external.h"

static struct allocations arrays; /* mipmapped ones too */

/* Their memory is mapped page by page through cuMemMapArrayAsync, which is refused too. */
static CUresult refuse_without_memory(void)
{
	static _Atomic bool logged;

	if (!atomic_exchange(&logged, true))
		log_line(LOG_WARNING, "refused a sparse or deferred-mapping array: "
				      "not supported on a shared card");
	return CUDA_ERROR_NOT_SUPPORTED;
}

static bool has_no_memory(unsigned int flags)
{
	return flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

static CUresult array_reserve(struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	if (has_no_memory(descriptor->Flags))
		return refuse_without_memory();
	return charge_reserve_current(charge, GPUSHARE_KIND_ARRAY, array_bytes(descriptor));
}

/* Descriptors as the newest form has them. */
#define WHOLE(own) own
#define FLAT(own)                                                                                  \
	{.Width = own.Width,                                                                       \
		.Height = own.Height,                                                              \
		.Format = own.Format,                                                              \
		.NumChannels = own.NumChannels}
#define SOLID(own)                                                                                 \
	{.Width = own.Width,                                                                       \
		.Height = own.Height,                                                              \
		.Depth = own.Depth,                                                                \
		.Format = own.Format,                                                              \
		.NumChannels = own.NumChannels,                                                    \
		.Flags = own.Flags}

/* Without a descriptor, the driver returns the error. */
#define CREATE(symbol, type, as_newest)                                                            \
	CUDA(symbol, (CUarray * array, const type *descriptor))                                    \
	{                                                                                          \
		struct charge charge;                                                              \
		CUarray returned = NULL;                                                           \
		if (!array || !descriptor)                                                         \
			return REAL(symbol)(array, descriptor);                                    \
		const type own = *descriptor;                                                      \
		const CUDA_ARRAY3D_DESCRIPTOR newest = as_newest(own);                             \
		CUresult result = array_reserve(&charge, &newest);                                 \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = CHARGED(charge, REAL(symbol)(&returned, &own));                           \
		charge_settle_in(&arrays, &charge, result, (uintptr_t)returned);                   \
		if (result == CUDA_SUCCESS)                                                        \
			*array = returned;                                                         \
		return result;                                                                     \
	}

CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, FLAT)
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, WHOLE)
/* The interface before CUDA 3.2, with 32-bit sizes. */
CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, FLAT)
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, SOLID)

CUDA(cuArrayDestroy, (CUarray array))
{
	return CHARGE_FREE_IN(&arrays, (uintptr_t)array, REAL(cuArrayDestroy)(array));
}

CUDA(cuMipmappedArrayCreate,
	(CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels))
{
	struct charge charge;
	CUmipmappedArray returned = NULL;

	if (!array || !descriptor)
		return REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
	const CUDA_ARRAY3D_DESCRIPTOR own = *descriptor;
	if (has_no_memory(own.Flags))
		return refuse_without_memory();
	CUresult result =
		charge_reserve_current(&charge, GPUSHARE_KIND_ARRAY, mipmap_bytes(&own, levels));
	if (result != CUDA_SUCCESS)
		return result;
	result = CHARGED(charge, REAL(cuMipmappedArrayCreate)(&returned, &own, levels));
	charge_settle_in(&arrays, &charge, result, (uintptr_t)returned);
	if (result == CUDA_SUCCESS)
		*array = returned;
	return result;
}

CUDA(cuMipmappedArrayDestroy, (CUmipmappedArray array))
{
	struct allocation charged;

	if (allocations_take(&arrays, (uintptr_t)array, &charged))
		return charge_free(&arrays, &charged, REAL(cuMipmappedArrayDestroy)(array));
	return external_free_array(array, REAL(cuMipmappedArrayDestroy));
}

void arrays_end_context(uint64_t context, unsigned card)
{
	charge_end_in(&arrays, context, card);
}

void arrays_after_fork_in_child(void)
{
	allocations_forget(&arrays);
}
