/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of rows and slices, between host, device and arrays.
 */
#include "array.h"
#include "copy.h"

#include <string.h>

/* One side of a copy: its first byte, and the distances between rows and slices. */
struct side {
	CUdeviceptr first;
	size_t row_bytes, slice_bytes;
};

struct place {
	size_t x_bytes, y, z;
	CUmemorytype type;
	const void *host;
	CUdeviceptr pointer;
	CUarray array;
	size_t pitch, height;
};

static bool side_at(struct side *side, const struct place *place, const CUDA_MEMCPY3D *copy)
{
	size_t rows = place->height ? place->height : copy->Height;

	side->row_bytes = place->pitch ? place->pitch : copy->WidthInBytes;
	side->first = place->type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)place->host
							: place->pointer;
	if (place->type == CU_MEMORYTYPE_ARRAY) {
		if (!array_valid(place->array))
			return false;
		side->row_bytes = place->array->row_bytes;
		side->first = place->array->base;
		rows = place->array->rows;
	}
	side->slice_bytes = side->row_bytes * rows;
	side->first += place->z * side->slice_bytes + place->y * side->row_bytes + place->x_bytes;
	return side->row_bytes >= copy->WidthInBytes;
}

static void *row_of(
	const struct side *side, const CUDA_MEMCPY3D *copy, size_t y, size_t z, bool writing)
{
	return copy_contents(side->first + z * side->slice_bytes + y * side->row_bytes,
		copy->WidthInBytes, writing);
}

CUresult copy_box(
	const CUDA_MEMCPY3D *copy, CUstream handle, enum stream_flavour flavour, bool wait)
{
	IN_CALL();
	const struct place from = {copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcMemoryType,
		copy->srcHost, copy->srcDevice, copy->srcArray, copy->srcPitch, copy->srcHeight};
	const struct place to = {copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstMemoryType,
		copy->dstHost, copy->dstDevice, copy->dstArray, copy->dstPitch, copy->dstHeight};
	const size_t bytes = copy->WidthInBytes * copy->Height * copy->Depth;
	struct side source, target;
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	bool over_link;

	if (status != CUDA_SUCCESS || bytes == 0)
		return status;
	REQUIRE(side_at(&source, &from, copy) && side_at(&target, &to, copy),
		CUDA_ERROR_INVALID_VALUE);
	over_link = !memory_is_device(source.first) || !memory_is_device(target.first);
	if (stream_captures(stream))
		return copy_capture(stream, bytes, over_link, wait);
	host_functions_wait(stream, atomic_load(&stream->host_submitted));
	for (size_t z = 0; z < copy->Depth; z++) {
		for (size_t y = 0; y < copy->Height; y++) {
			void *row = row_of(&target, copy, y, z, true);
			const void *other = row_of(&source, copy, y, z, false);

			REQUIRE(row && other, CUDA_ERROR_INVALID_VALUE);
			memmove(row, other, copy->WidthInBytes);
		}
	}
	return copy_finish(stream, bytes, over_link, wait);
}

static CUresult copy_flat(
	const CUDA_MEMCPY2D *copy, CUstream handle, enum stream_flavour flavour, bool wait)
{
	CUDA_MEMCPY3D box;

	REQUIRE(copy, CUDA_ERROR_INVALID_VALUE);
	box = (CUDA_MEMCPY3D){.srcXInBytes = copy->srcXInBytes,
		.srcY = copy->srcY,
		.srcMemoryType = copy->srcMemoryType,
		.srcHost = copy->srcHost,
		.srcDevice = copy->srcDevice,
		.srcArray = copy->srcArray,
		.srcPitch = copy->srcPitch,
		.dstXInBytes = copy->dstXInBytes,
		.dstY = copy->dstY,
		.dstMemoryType = copy->dstMemoryType,
		.dstHost = copy->dstHost,
		.dstDevice = copy->dstDevice,
		.dstArray = copy->dstArray,
		.dstPitch = copy->dstPitch,
		.WidthInBytes = copy->WidthInBytes,
		.Height = copy->Height,
		.Depth = 1};
	return copy_box(&box, handle, flavour, wait);
}

static CUresult copy_solid(
	const CUDA_MEMCPY3D *copy, CUstream handle, enum stream_flavour flavour, bool wait)
{
	REQUIRE(copy, CUDA_ERROR_INVALID_VALUE);
	return copy_box(copy, handle, flavour, wait);
}

#define SYNCHRONOUS(name, type, call)                                                              \
	CUresult name(const type *copy)                                                            \
	{                                                                                          \
		return call(copy, NULL, STREAM_LEGACY, true);                                      \
	}                                                                                          \
	CUresult name##_ptds(const type *copy)                                                     \
	{                                                                                          \
		return call(copy, NULL, STREAM_PER_THREAD, true);                                  \
	}

#define ASYNCHRONOUS(name, type, call)                                                             \
	CUresult name(const type *copy, CUstream stream)                                           \
	{                                                                                          \
		return call(copy, stream, STREAM_LEGACY, false);                                   \
	}                                                                                          \
	CUresult name##_ptsz(const type *copy, CUstream stream)                                    \
	{                                                                                          \
		return call(copy, stream, STREAM_PER_THREAD, false);                               \
	}

SYNCHRONOUS(cuMemcpy2D_v2, CUDA_MEMCPY2D, copy_flat)
SYNCHRONOUS(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, copy_flat)
SYNCHRONOUS(cuMemcpy3D_v2, CUDA_MEMCPY3D, copy_solid)
SYNCHRONOUS(cuMemcpy3DPeer, CUDA_MEMCPY3D, copy_solid)
ASYNCHRONOUS(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, copy_flat)
ASYNCHRONOUS(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, copy_solid)
ASYNCHRONOUS(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, copy_solid)
