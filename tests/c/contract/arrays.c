/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays, mipmapped ones, and what looks at them.
 */
#include "contract.h"

#include <string.h>

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

void bytes_come_back_from_an_array(void)
{
	const CUDA_ARRAY_DESCRIPTOR_v1 descriptor = {
		.Width = 10, .Height = 3, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
	unsigned char out[3][10], in[3][10] = {{0}};
	CUDA_ARRAY_DESCRIPTOR told;
	CUarray array;

	begin();
	for (int i = 0; i < 30; i++)
		out[i / 10][i % 10] = (unsigned char)(i + 1);
	OK(cuArrayCreate(&array, &descriptor));
	OK(cuArrayGetDescriptor_v2(&told, array));
	EQUAL(told.Width, 10);
	const CUDA_MEMCPY2D there = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = out,
		.dstMemoryType = CU_MEMORYTYPE_ARRAY,
		.dstArray = array,
		.WidthInBytes = 10,
		.Height = 3};
	const CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
		.srcArray = array,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = in,
		.WidthInBytes = 10,
		.Height = 3};
	OK(cuMemcpy2D_v2(&there));
	OK(cuMemcpy2D_v2(&back));
	EQUAL(memcmp(in, out, sizeof(in)), 0);
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

void textures_and_surfaces_take_no_memory(void)
{
	CUDA_ARRAY3D_DESCRIPTOR descriptor = floats(64, 64, 0);
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY}, told;
	const union {
		char bytes[104];
		double alignment;
	} sampling = {{0}};
	CUarray plain, written;
	CUsurfObject surface;
	CUtexObject texture;

	begin();
	OK(cuArray3DCreate_v2(&plain, &descriptor));
	descriptor.Flags = CUDA_ARRAY3D_SURFACE_LDST;
	OK(cuArray3DCreate_v2(&written, &descriptor));
	const size_t before = free_bytes();
	resource.res.array.hArray = plain;
	OK(cuTexObjectCreate(&texture, &resource, (const void *)&sampling, NULL));
	IS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &resource));
	OK(cuTexObjectGetResourceDesc(&told, texture));
	CHECK(told.res.array.hArray == plain);
	OK(cuTexObjectDestroy(texture));
	resource.res.array.hArray = written;
	OK(cuSurfObjectCreate(&surface, &resource));
	UNCHANGED(before);
	OK(cuSurfObjectDestroy(surface));
	OK(cuArrayDestroy(plain));
	OK(cuArrayDestroy(written));
}
