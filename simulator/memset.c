/* SPDX-License-Identifier: Apache-2.0
 *
 * Setting memory to a value, in elements of one, two or four bytes.
 */
#include "copy.h"

#include <string.h>

static void fill_row(unsigned char *to, uint32_t value, size_t element, size_t count)
{
	if (element == 1) {
		memset(to, (int)value, count);
		return;
	}
	for (size_t i = 0; i < count; i++)
		memcpy(to + i * element, &value, element);
}

/* `height` rows of `width` elements, `pitch` bytes apart. */
static CUresult fill(CUdeviceptr to, size_t pitch, uint32_t value, size_t element, size_t width,
	size_t height, CUstream handle, enum stream_flavour flavour)
{
	IN_CALL();
	size_t span = height > 0 ? (height - 1) * pitch + width * element : 0;
	CUstream stream;
	CUresult status = stream_resolve(handle, flavour, &stream);
	unsigned char *contents;

	if (status != CUDA_SUCCESS || width == 0 || height == 0)
		return status;
	REQUIRE(to % element == 0 && (height == 1 || pitch >= width * element),
		CUDA_ERROR_INVALID_VALUE);
	if (stream_captures(stream))
		return capture_work(stream, CU_GRAPH_NODE_TYPE_MEMSET,
			copy_duration(stream->context, width * element * height, false));
	contents = memory_is_device(to) ? memory_contents(to, span, true) : NULL;
	REQUIRE(contents, CUDA_ERROR_INVALID_VALUE);
	host_functions_wait(stream, atomic_load(&stream->host_submitted));
	for (size_t row = 0; row < height; row++)
		fill_row(contents + row * pitch, value, element, width);
	return copy_finish(stream, width * element * height, false, false);
}

#define FILL(bits, type)                                                                           \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                    \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, NULL, STREAM_LEGACY);                \
	}                                                                                          \
	CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t count)               \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, NULL, STREAM_PER_THREAD);            \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, stream, STREAM_LEGACY);              \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async_ptsz(                                                      \
		CUdeviceptr to, type value, size_t count, CUstream stream)                         \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, stream, STREAM_PER_THREAD);          \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2(                                                           \
		CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)             \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, NULL, STREAM_LEGACY);       \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2_ptds(                                                      \
		CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)             \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, NULL, STREAM_PER_THREAD);   \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,  \
		size_t height, CUstream stream)                                                    \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, stream, STREAM_LEGACY);     \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr to, size_t pitch, type value,           \
		size_t width, size_t height, CUstream stream)                                      \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, stream, STREAM_PER_THREAD); \
	}

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
