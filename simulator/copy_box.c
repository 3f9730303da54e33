/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of rows and slices, between host, device and arrays.
 */
#include "array.h"
#include "copy.h"

#include <string.h>

/* One side of a copy: its first byte, and the distances between rows and slices. */
struct side {
	unsigned char *first;
	size_t row_bytes;
	size_t slice_bytes;
	bool on_card;
};

struct place {
	size_t x_bytes, y, z;
	CUmemorytype type;
	const void *host;
	CUdeviceptr pointer;
	CUarray array;
	size_t pitch, height;
};

static bool side_in_array(struct side *side, const struct place *place, size_t bytes, bool writing)
{
	CUarray array = place->array;
	size_t offset;

	if (!array || !array_valid(array))
		return false;
	side->row_bytes = array->row_bytes;
	side->slice_bytes = array->row_bytes * array->rows;
	side->on_card = true;
	offset = place->z * side->slice_bytes + place->y * side->row_bytes + place->x_bytes;
	side->first = memory_contents(array->base + offset, bytes, writing);
	return side->first != NULL;
}

static bool side_at(
	struct side *side, const struct place *place, const CUDA_MEMCPY3D *copy, bool writing)
{
	size_t rows = place->height ? place->height : copy->Height;
	size_t span;
	CUdeviceptr address;

	if (place->type == CU_MEMORYTYPE_ARRAY) {
		size_t row = place->array ? place->array->row_bytes : 0;
		size_t slice = place->array ? row * place->array->rows : 0;

		return side_in_array(side, place,
			(copy->Depth - 1) * slice + (copy->Height - 1) * row + copy->WidthInBytes,
			writing);
	}
	side->row_bytes = place->pitch ? place->pitch : copy->WidthInBytes;
	side->slice_bytes = side->row_bytes * rows;
	if (side->row_bytes < copy->WidthInBytes)
		return false;
	span = (copy->Depth - 1) * side->slice_bytes + (copy->Height - 1) * side->row_bytes +
	       copy->WidthInBytes;
	address = place->type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)place->host
						    : place->pointer;
	address += place->z * side->slice_bytes + place->y * side->row_bytes + place->x_bytes;
	side->on_card = memory_is_device(address);
	if (place->type == CU_MEMORYTYPE_DEVICE && !side->on_card)
		return false;
	side->first = side->on_card ? memory_contents(address, span, writing)
				    : (unsigned char *)(uintptr_t)address;
	return side->first != NULL;
}

CUresult copy_box(
	const CUDA_MEMCPY3D *copy, CUstream handle, enum stream_flavour flavour, bool wait)
{
	IN_CALL();
	const struct place from = {copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcMemoryType,
		copy->srcHost, copy->srcDevice, copy->srcArray, copy->srcPitch, copy->srcHeight};
	const struct place to = {copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstMemoryType,
		copy->dstHost, copy->dstDevice, copy->dstArray, copy->dstPitch, copy->dstHeight};
	struct side source, target;
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);

	if (status != CUDA_SUCCESS)
		return status;
	if (copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0)
		return CUDA_SUCCESS;
	REQUIRE(side_at(&source, &from, copy, false) && side_at(&target, &to, copy, true),
		CUDA_ERROR_INVALID_VALUE);
	if (stream_captures(stream))
		return copy_capture(stream, copy->WidthInBytes * copy->Height * copy->Depth,
			!source.on_card || !target.on_card, wait);
	host_functions_wait(stream, atomic_load(&stream->host_submitted));
	for (size_t z = 0; z < copy->Depth; z++) {
		for (size_t y = 0; y < copy->Height; y++)
			memmove(target.first + z * target.slice_bytes + y * target.row_bytes,
				source.first + z * source.slice_bytes + y * source.row_bytes,
				copy->WidthInBytes);
	}
	return copy_finish(stream, copy->WidthInBytes * copy->Height * copy->Depth,
		!source.on_card || !target.on_card, wait);
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
