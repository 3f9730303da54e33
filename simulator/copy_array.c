/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between one-dimensional arrays and anything else, by bytes.
 */
#include "copy.h"
#include "cuda_work.h"

/* One side of such a copy: an array and an offset, or an address. */
struct end {
	CUarray array;
	size_t offset;
	CUdeviceptr address;
};

#define AT(where) ((struct end){.address = (CUdeviceptr)(uintptr_t)(where)})
#define IN(which, place) ((struct end){.array = which, .offset = place})

static CUmemorytype type_of(const struct end *end)
{
	return end->array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
}

static CUresult copy_row(struct end to, struct end from, size_t bytes, CUstream stream,
	enum stream_flavour flavour, bool wait)
{
	const CUDA_MEMCPY3D copy = {.srcXInBytes = from.offset,
		.srcMemoryType = type_of(&from),
		.srcDevice = from.address,
		.srcArray = from.array,
		.dstXInBytes = to.offset,
		.dstMemoryType = type_of(&to),
		.dstDevice = to.address,
		.dstArray = to.array,
		.WidthInBytes = bytes,
		.Height = 1,
		.Depth = 1};

	REQUIRE((to.array || to.address) && (from.array || from.address), CUDA_ERROR_INVALID_VALUE);
	return copy_box(&copy, stream, flavour, wait);
}

#define SYNCHRONOUS(name, parameters, to_end, from_end)                                            \
	CUresult name parameters                                                                   \
	{                                                                                          \
		return copy_row(to_end, from_end, bytes, NULL, STREAM_LEGACY, true);               \
	}                                                                                          \
	CUresult name##_ptds parameters                                                            \
	{                                                                                          \
		return copy_row(to_end, from_end, bytes, NULL, STREAM_PER_THREAD, true);           \
	}

#define ASYNCHRONOUS(name, parameters, to_end, from_end)                                           \
	CUresult name parameters                                                                   \
	{                                                                                          \
		return copy_row(to_end, from_end, bytes, stream, STREAM_LEGACY, false);            \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		return copy_row(to_end, from_end, bytes, stream, STREAM_PER_THREAD, false);        \
	}

SYNCHRONOUS(cuMemcpyDtoA_v2, (CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes),
	IN(to, to_offset), AT(from))
SYNCHRONOUS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes),
	AT(to), IN(from, from_offset))
SYNCHRONOUS(cuMemcpyHtoA_v2, (CUarray to, size_t to_offset, const void *from, size_t bytes),
	IN(to, to_offset), AT(from))
SYNCHRONOUS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t from_offset, size_t bytes), AT(to),
	IN(from, from_offset))
SYNCHRONOUS(cuMemcpyAtoA_v2,
	(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
	IN(to, to_offset), IN(from, from_offset))
ASYNCHRONOUS(cuMemcpyHtoAAsync_v2,
	(CUarray to, size_t to_offset, const void *from, size_t bytes, CUstream stream),
	IN(to, to_offset), AT(from))
ASYNCHRONOUS(cuMemcpyAtoHAsync_v2,
	(void *to, CUarray from, size_t from_offset, size_t bytes, CUstream stream), AT(to),
	IN(from, from_offset))
