/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays, mipmapped ones, and what looks at them.
 */
#include "made.h"

#include "expect.h"

#include <string.h>

static CUDA_ARRAY3D_DESCRIPTOR floats(size_t width, size_t height, size_t depth)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){.Width = width,
		.Height = height,
		.Depth = depth,
		.Format = CU_AD_FORMAT_FLOAT,
		.NumChannels = 1};
}

static void rows_and_heights_are_rounded_to_blocks(void)
{
	/* 1000 floats are 63 tiles of 64 bytes; 130 rows two blocks of 128. */
	const CUDA_ARRAY3D_DESCRIPTOR odd = floats(1000, 130, 8);
	size_t before = free_bytes();
	CUarray array;

	EXPECT_EQUAL(cuArray3DCreate_v2(&array, &odd), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 8 * MIB);
	EXPECT(UINT64_C(63) * 64 * 256 * 8 <= 8 * MIB && UINT64_C(4000) * 130 * 8 < 4 * MIB);
	EXPECT_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void bytes_come_back_from_an_array(void)
{
	const CUDA_ARRAY_DESCRIPTOR_v1 descriptor = {
		.Width = 10, .Height = 3, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
	unsigned char out[3][10], in[3][10] = {{0}};
	CUDA_ARRAY_DESCRIPTOR told;
	CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = out,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY,
		.WidthInBytes = 10,
		.Height = 3};
	CUarray array;

	for (int i = 0; i < 30; i++)
		out[i / 10][i % 10] = (unsigned char)(i + 1);
	EXPECT_EQUAL(cuArrayCreate(&array, &descriptor), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayGetDescriptor_v2(&told, array), CUDA_SUCCESS);
	EXPECT_EQUAL(told.Width, 10);
	copy.dstArray = array;
	EXPECT_EQUAL(cuMemcpy2D_v2(&copy), CUDA_SUCCESS);
	copy = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
		.srcArray = array,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = in,
		.WidthInBytes = 10,
		.Height = 3};
	EXPECT_EQUAL(cuMemcpy2D_v2(&copy), CUDA_SUCCESS);
	EXPECT_EQUAL(memcmp(in, out, sizeof(in)), 0);
	EXPECT_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayDestroy(NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void a_mipmap_takes_all_its_levels_at_once(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR square = floats(1024, 1024, 0);
	size_t before = free_bytes();
	CUDA_ARRAY3D_DESCRIPTOR told;
	CUmipmappedArray mipmap;
	CUarray level;

	EXPECT_EQUAL(cuMipmappedArrayCreate(&mipmap, &square, 100), CUDA_SUCCESS);
	EXPECT_EQUAL(before - free_bytes(), 6 * MIB); /* 4 MiB and a third, in units */
	EXPECT_EQUAL(cuMipmappedArrayGetLevel(&level, mipmap, 10), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArray3DGetDescriptor_v2(&told, level), CUDA_SUCCESS);
	EXPECT_EQUAL(told.Width, 1);
	EXPECT_EQUAL(cuMipmappedArrayGetLevel(&level, mipmap, 11), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQUAL(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
}

static void over_the_card_is_out_of_memory(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR huge = floats(65536, 16384, 0);
	size_t before = free_bytes();
	CUmipmappedArray mipmap;
	CUarray array;

	EXPECT_EQUAL(cuArray3DCreate_v2(&array, &huge), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(cuMipmappedArrayCreate(&mipmap, &huge, 3), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQUAL(free_bytes(), before);
}

static void arrays_without_memory_of_their_own_are_not_simulated(void)
{
	CUDA_ARRAY3D_DESCRIPTOR descriptor = floats(64, 64, 0);
	CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
	CUmipmappedArray mipmap;
	CUarray array;

	EXPECT_EQUAL(cuArray3DCreate_v2(&array, &descriptor), CUDA_SUCCESS);
	EXPECT_EQUAL(
		cuArrayGetMemoryRequirements(&requirements, array, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
	descriptor.Flags = CUDA_ARRAY3D_SPARSE;
	EXPECT_EQUAL(cuArray3DCreate_v2(&array, &descriptor), CUDA_ERROR_NOT_SUPPORTED);
	descriptor.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
	EXPECT_EQUAL(cuMipmappedArrayCreate(&mipmap, &descriptor, 2), CUDA_ERROR_NOT_SUPPORTED);
}

static void textures_and_surfaces_look_at_what_is_there(void)
{
	CUDA_ARRAY3D_DESCRIPTOR descriptor = floats(64, 64, 0);
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY}, told;
	const union {
		char bytes[104];
		double alignment;
	} sampling = {{0}};
	const CUDA_TEXTURE_DESC *how = (const void *)&sampling;
	size_t before;
	CUsurfObject surface;
	CUtexObject texture;
	CUarray plain, written;

	EXPECT_EQUAL(cuArray3DCreate_v2(&plain, &descriptor), CUDA_SUCCESS);
	descriptor.Flags = CUDA_ARRAY3D_SURFACE_LDST;
	EXPECT_EQUAL(cuArray3DCreate_v2(&written, &descriptor), CUDA_SUCCESS);
	before = free_bytes();
	EXPECT_EQUAL(cuTexObjectCreate(&texture, &resource, how, NULL), CUDA_ERROR_INVALID_VALUE);
	resource.res.array.hArray = plain;
	EXPECT_EQUAL(cuTexObjectCreate(&texture, &resource, how, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuSurfObjectCreate(&surface, &resource), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuTexObjectGetResourceDesc(&told, texture), CUDA_SUCCESS);
	EXPECT(told.res.array.hArray == plain);
	EXPECT_EQUAL(cuSurfObjectDestroy(texture), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQUAL(cuTexObjectDestroy(texture), CUDA_SUCCESS);
	resource.res.array.hArray = written;
	EXPECT_EQUAL(cuSurfObjectCreate(&surface, &resource), CUDA_SUCCESS);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuSurfObjectDestroy(surface), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayDestroy(plain), CUDA_SUCCESS);
	EXPECT_EQUAL(cuArrayDestroy(written), CUDA_SUCCESS);
}

void test_arrays(void)
{
	rows_and_heights_are_rounded_to_blocks();
	bytes_come_back_from_an_array();
	a_mipmap_takes_all_its_levels_at_once();
	over_the_card_is_out_of_memory();
	arrays_without_memory_of_their_own_are_not_simulated();
	textures_and_surfaces_look_at_what_is_there();
}
