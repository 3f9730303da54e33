/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include "memory.h"

#include <stdlib.h>

bool array_valid(CUarray array)
{
	return array && array->kind == OBJECT_ARRAY;
}

/* Bytes of one channel: CUarray_format of cuda.h; 0 for compressed and video formats. */
static size_t format_bytes(CUarray_format format)
{
	switch (format) {
	case 0x01: /* unsigned 8 */
	case 0x08: /* signed 8 */
		return 1;
	case 0x02:
	case 0x09:
	case 0x10: /* half */
		return 2;
	case 0x03:
	case 0x0a:
	case 0x20: /* float */
		return 4;
	default:
		return 0;
	}
}

static size_t at_least_one(size_t count)
{
	return count ? count : 1;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	size_t row_bytes, rows, slices;
	CUarray made;
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(array && descriptor && descriptor->Width > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(descriptor->NumChannels == 1 || descriptor->NumChannels == 2 ||
			descriptor->NumChannels == 4,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(format_bytes(descriptor->Format) > 0, CUDA_ERROR_NOT_SUPPORTED);
	REQUIRE(descriptor->Width <= 131072 && descriptor->Height <= 65536 &&
			descriptor->Depth <= 16384,
		CUDA_ERROR_INVALID_VALUE);
	row_bytes = descriptor->Width * descriptor->NumChannels * format_bytes(descriptor->Format);
	rows = at_least_one(descriptor->Height);
	slices = at_least_one(descriptor->Depth);
	made = malloc(sizeof(*made));
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	*made = (struct CUarray_st){OBJECT_ARRAY, *descriptor, row_bytes, rows, 0};
	result = memory_take(context, row_bytes * rows * slices, &made->base);
	if (result == CUDA_SUCCESS)
		*array = made;
	else
		free(made);
	return result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	CUDA_ARRAY3D_DESCRIPTOR whole;

	REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
	whole = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->Width, descriptor->Height, 0,
		descriptor->Format, descriptor->NumChannels, 0};
	return cuArray3DCreate_v2(array, &whole);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE);
	*descriptor = array->descriptor;
	return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
	REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE);
	*descriptor = (CUDA_ARRAY_DESCRIPTOR){array->descriptor.Width, array->descriptor.Height,
		array->descriptor.Format, array->descriptor.NumChannels};
	return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray array)
{
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE);
	context_drain(context);
	result = memory_give(array->base);
	array->kind = 0;
	free(array);
	return result;
}
