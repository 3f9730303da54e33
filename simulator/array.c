/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include "memory.h"

#include <stdlib.h>

/* Block-linear memory consists of tiles of 64 bytes by 8 rows ("GOBs"), and these form blocks that
 * are one tile wide and up to 16 high, less for arrays with few rows: the public class headers and
 * the documentation of the open drivers. The height that NVIDIA's driver chooses is an estimate. */
#define TILE_BYTES 64
#define TILE_ROWS 8
#define BLOCK_TILES 16

#define WIDEST 131072
#define HIGHEST 65536
#define DEEPEST 16384

bool array_valid(CUarray array)
{
	return array && array->kind == OBJECT_ARRAY;
}

/* Bytes of one channel; 0 for packed, compressed and video formats. */
static size_t format_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X4:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

static size_t at_least_one(size_t count)
{
	return count ? count : 1;
}

static size_t round_to(size_t count, size_t unit)
{
	return (count + unit - 1) / unit * unit;
}

/* Rows that `height` of them take: whole blocks, no higher than necessary. */
static size_t block_rows(size_t height)
{
	size_t block = TILE_ROWS;

	if (height <= 1)
		return 1;
	while (block < height && block < TILE_ROWS * BLOCK_TILES)
		block *= 2;
	return round_to(height, block);
}

CUresult array_lay_out(struct CUarray_st *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	size_t channel = format_bytes(descriptor->Format);

	REQUIRE(descriptor->Width > 0 && descriptor->Width <= WIDEST &&
			descriptor->Height <= HIGHEST && descriptor->Depth <= DEEPEST,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(descriptor->NumChannels == 1 || descriptor->NumChannels == 2 ||
			descriptor->NumChannels == 4,
		CUDA_ERROR_INVALID_VALUE);
	REQUIRE(channel > 0, CUDA_ERROR_NOT_SUPPORTED);
	/* Without memory of their own, which cuMemMapArrayAsync would map into them. */
	REQUIRE(!(descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)),
		CUDA_ERROR_NOT_SUPPORTED);
	*array = (struct CUarray_st){.kind = OBJECT_ARRAY,
		.descriptor = *descriptor,
		.element_bytes = descriptor->NumChannels * channel,
		.row_bytes =
			round_to(descriptor->Width * descriptor->NumChannels * channel, TILE_BYTES),
		.rows = block_rows(descriptor->Height)};
	return CUDA_SUCCESS;
}

size_t array_bytes(const struct CUarray_st *array)
{
	return array->row_bytes * array->rows * at_least_one(array->descriptor.Depth);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	struct CUarray_st laid_out;
	CUresult result;
	CUarray made;

	REQUIRE_CONTEXT(context);
	REQUIRE(array && descriptor, CUDA_ERROR_INVALID_VALUE);
	REQUIRE_NO_CAPTURE();
	result = array_lay_out(&laid_out, descriptor);
	if (result != CUDA_SUCCESS)
		return result;
	REQUIRE_NO_FAULT(context->card);
	made = malloc(sizeof(*made));
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	*made = laid_out;
	result = memory_take(context, array_bytes(made), &made->base);
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

/* CUDA 1's, with 32-bit sizes. */
CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
	CUDA_ARRAY3D_DESCRIPTOR whole;

	REQUIRE(descriptor, CUDA_ERROR_INVALID_VALUE);
	whole = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->Width, descriptor->Height, descriptor->Depth,
		descriptor->Format, descriptor->NumChannels, descriptor->Flags};
	return cuArray3DCreate_v2(array, &whole);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
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

CUresult cuArrayDestroy(CUarray array)
{
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(array_valid(array) && !array->mipmap, CUDA_ERROR_INVALID_HANDLE);
	REQUIRE_NO_CAPTURE();
	context_drain(context);
	result = memory_give(array->base);
	array->kind = 0;
	free(array);
	return result;
}
