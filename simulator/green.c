/* SPDX-License-Identifier: Apache-2.0
 *
 * Green contexts, as far as memory is concerned. One is a context of its own that keeps the
 * device's primary one alive. It takes memory of the card that only the end of the primary one
 * gives back. Its multiprocessors are not isolated: time slices do not model them. What is
 * allocated in it ends with it.
 */
#include "driver.h"

#include <stdlib.h>

#define GREEN_KIND UINT64_C(0x475245454e435431)
#define DESCRIPTION_KIND UINT64_C(0x475245454e445331)
/* On an H100 and an H200 with driver 580, which keep both after the green context's end. */
#define FIRST_CONTEXT_BYTES (UINT64_C(6) << 20)
#define GREEN_CONTEXT_BYTES (UINT64_C(4) << 20)

struct CUgreenCtx_st {
	uint64_t kind;
	CUcontext context;
	CUdevice ordinal;
};

/* The unit of partitions: CUDA driver API, cuDevSmResourceSplitByCount. */
static unsigned int partition_unit(CUdevice ordinal)
{
	return card_profile(device_card(ordinal))->compute_major >= 9 ? 8 : 2;
}

static CUdevResource multiprocessors(unsigned int count, unsigned int unit)
{
	return (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_SM,
		.sm = {.smCount = count,
			.minSmPartitionSize = unit,
			.smCoscheduledAlignment = unit}};
}

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(resource && type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
	*resource = multiprocessors(
		card_profile(device_card(ordinal))->multiprocessors, partition_unit(ordinal));
	return CUDA_SUCCESS;
}

/* As many groups of at least `least` as possible, up to *count; without a result only their
 * number. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *count,
	const CUdevResource *input, CUdevResource *remaining, unsigned int flags,
	unsigned int least)
{
	unsigned int unit, size, groups;

	REQUIRE_DRIVER();
	REQUIRE(count && input && flags == 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(input->type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
	unit = input->sm.smCoscheduledAlignment;
	REQUIRE(unit > 0 && least <= input->sm.smCount, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
	size = least <= unit ? unit : (least + unit - 1) / unit * unit;
	groups = input->sm.smCount / size;
	if (result && groups > *count)
		groups = *count;
	for (unsigned int i = 0; result && i < groups; i++)
		result[i] = multiprocessors(size, unit);
	if (result && remaining)
		*remaining = multiprocessors(input->sm.smCount - groups * size, unit);
	*count = groups;
	return CUDA_SUCCESS;
}

/* Nothing depends on the resources, so all descriptions are one. */
static struct CUdevResourceDesc_st {
	uint64_t kind;
} every = {DESCRIPTION_KIND};

CUresult cuDevResourceGenerateDesc(
	CUdevResourceDesc *description, CUdevResource *resources, unsigned int count)
{
	REQUIRE_DRIVER();
	REQUIRE(description && resources && count > 0, CUDA_ERROR_INVALID_VALUE);
	*description = &every;
	return CUDA_SUCCESS;
}

static bool take(CUcontext primary)
{
	struct sim_card *card = primary->card;
	bool fits;

	card_lock(card);
	const uint64_t bytes = primary->green_bytes ? GREEN_CONTEXT_BYTES : FIRST_CONTEXT_BYTES;
	fits = card_reserve(card, bytes);
	if (fits)
		primary->green_bytes += bytes;
	card_unlock(card);
	return fits;
}

static CUresult make(CUgreenCtx green)
{
	CUcontext primary;
	CUresult result = cuDevicePrimaryCtxRetain(&primary, green->ordinal);

	if (result != CUDA_SUCCESS)
		return result;
	result = take(primary) ? cuCtxCreate_v2(&green->context, 0, green->ordinal)
			       : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		cuCtxPopCurrent_v2(NULL);
	else
		cuDevicePrimaryCtxRelease_v2(green->ordinal);
	return result;
}

CUresult cuGreenCtxCreate(
	CUgreenCtx *result, CUdevResourceDesc description, CUdevice ordinal, unsigned int flags)
{
	CUgreenCtx green;
	CUresult status;

	REQUIRE_DRIVER();
	REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
	REQUIRE(result && description && description->kind == DESCRIPTION_KIND &&
			flags == CU_GREEN_CTX_DEFAULT_STREAM,
		CUDA_ERROR_INVALID_VALUE);
	green = calloc(1, sizeof(*green));
	REQUIRE(green, CUDA_ERROR_OUT_OF_MEMORY);
	*green = (struct CUgreenCtx_st){.kind = GREEN_KIND, .ordinal = ordinal};
	status = make(green);
	if (status != CUDA_SUCCESS)
		free(green);
	else
		*result = green;
	return status;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	REQUIRE_DRIVER();
	REQUIRE(green && green->kind == GREEN_KIND, CUDA_ERROR_INVALID_VALUE);
	cuCtxDestroy_v2(green->context);
	cuDevicePrimaryCtxRelease_v2(green->ordinal);
	green->kind = 0;
	free(green);
	return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
	REQUIRE_DRIVER();
	REQUIRE(context && green && green->kind == GREEN_KIND, CUDA_ERROR_INVALID_VALUE);
	*context = green->context;
	return CUDA_SUCCESS;
}
