/* SPDX-License-Identifier: Apache-2.0
 *
 * Mipmapped arrays: arrays of which each level has half the size of the one before, in one
 * allocation.
 */
#include "array.h"

#include "memory.h"

#include <stdlib.h>

#define LEVEL_BYTES 512 /* each level starts at a whole tile */

static bool mipmap_valid(CUmipmappedArray mipmap)
{
	return mipmap && mipmap->kind == OBJECT_MIPMAP;
}

/* Levels do not get smaller in the direction of layers, including cube faces. */
static bool has_layers(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	return descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

/* Down to one element in each direction. */
static unsigned int most_levels(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	size_t longest = descriptor->Width | descriptor->Height;
	unsigned int levels = 1;

	if (!has_layers(descriptor))
		longest |= descriptor->Depth;
	while (longest >>= 1)
		levels++;
	return levels;
}

static size_t halved(size_t size, unsigned int times)
{
	return size > 0 && size >> times == 0 ? 1 : size >> times;
}

static CUresult lay_out(CUmipmappedArray mipmap, size_t *bytes)
{
	*bytes = 0;
	for (unsigned int i = 0; i < mipmap->level_count; i++) {
		CUDA_ARRAY3D_DESCRIPTOR level = mipmap->descriptor;
		CUresult result;

		level.Width = halved(level.Width, i);
		level.Height = halved(level.Height, i);
		if (!has_layers(&level))
			level.Depth = halved(level.Depth, i);
		result = array_lay_out(&mipmap->levels[i], &level);
		if (result != CUDA_SUCCESS)
			return result;
		mipmap->levels[i].mipmap = mipmap;
		mipmap->levels[i].base = *bytes;
		*bytes += (array_bytes(&mipmap->levels[i]) + LEVEL_BYTES - 1) / LEVEL_BYTES *
			  LEVEL_BYTES;
	}
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(
	CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
	CUmipmappedArray made;
	CUresult result;
	size_t bytes;

	REQUIRE_CONTEXT(context);
	REQUIRE(array && descriptor && levels > 0, CUDA_ERROR_INVALID_VALUE);
	REQUIRE_NO_CAPTURE();
	if (levels > most_levels(descriptor))
		levels = most_levels(descriptor);
	made = calloc(1, sizeof(*made) + levels * sizeof(made->levels[0]));
	REQUIRE(made, CUDA_ERROR_OUT_OF_MEMORY);
	made->kind = OBJECT_MIPMAP;
	made->descriptor = *descriptor;
	made->level_count = levels;
	result = lay_out(made, &bytes);
	if (result == CUDA_SUCCESS)
		result = memory_take(context, bytes, &made->base);
	if (result != CUDA_SUCCESS) {
		free(made);
		return result;
	}
	for (unsigned int i = 0; i < levels; i++)
		made->levels[i].base += made->base;
	*array = made;
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned int number)
{
	REQUIRE_CONTEXT(context);
	REQUIRE(mipmap_valid(array), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE(level && number < array->level_count, CUDA_ERROR_INVALID_VALUE);
	*level = &array->levels[number];
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	CUresult result;

	REQUIRE_CONTEXT(context);
	REQUIRE(mipmap_valid(array), CUDA_ERROR_INVALID_HANDLE);
	REQUIRE_NO_CAPTURE();
	context_drain(context);
	result = memory_give(array->base);
	for (unsigned int i = 0; i < array->level_count; i++)
		array->levels[i].kind = 0;
	array->kind = 0;
	free(array);
	return result;
}
