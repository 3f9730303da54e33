/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays, and mipmapped ones.
 */
#include "contract.h"

static CUDA_ARRAY3D_DESCRIPTOR floats(size_t width, size_t height, size_t depth)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){.Width = width,
		.Height = height,
		.Depth = depth,
		.Format = CU_AD_FORMAT_FLOAT,
		.NumChannels = 1};
}

void an_array_is_counted_until_it_is_destroyed(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = floats(1000, 1000, 8),
				      huge = floats(16384, 16384, 16384);
	CUmipmappedArray mipmap;
	CUarray array;

	begin();
	const size_t before = free_bytes();
	OK(cuArray3DCreate_v2(&array, &shape));
	CHECK(before - free_bytes() >= (size_t)1000 * 1000 * 8 * sizeof(float));
	OK(cuArrayDestroy(array));
	UNCHANGED(before);
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuArray3DCreate_v2(&array, &huge));
	IS(CUDA_ERROR_OUT_OF_MEMORY, cuMipmappedArrayCreate(&mipmap, &huge, 3));
	UNCHANGED(before);
}

void a_mipmap_takes_all_its_levels_at_once(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR square = floats(4096, 4096, 0);
	CUDA_ARRAY3D_DESCRIPTOR told;
	CUmipmappedArray mipmap;
	CUarray level;

	begin();
	const size_t before = free_bytes();
	OK(cuMipmappedArrayCreate(&mipmap, &square, 13));
	/* A third more than its first level. */
	const size_t taken = before - free_bytes();
	CHECK(taken >= 64 * MIB / 3 * 4);
	OK(cuMipmappedArrayGetLevel(&level, mipmap, 12));
	OK(cuArray3DGetDescriptor_v2(&told, level));
	EQUAL(told.Width, 1);
	EQUAL(before - free_bytes(), taken);
	IS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, mipmap, 13));
	OK(cuMipmappedArrayDestroy(mipmap));
	UNCHANGED(before);
}
