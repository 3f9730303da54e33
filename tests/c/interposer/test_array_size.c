/* SPDX-License-Identifier: Apache-2.0
 *
 * What arrays of each format take; the simulator's own figure is compared in test_arrays.py, for
 * the formats that it has.
 */
#include "cuda/array_size.h"
#include "expect.h"

#define KIB 1024

static uint64_t bytes_of(
	unsigned format, unsigned channels, size_t width, size_t height, size_t depth)
{
	const CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = width,
		.Height = height,
		.Depth = depth,
		.Format = (CUarray_format)format,
		.NumChannels = channels};

	return array_bytes(&descriptor);
}

/* Of 256 by 256 elements, in units of KiB; 64 KiB are one byte for each. */
static void every_format_of_the_header_has_its_size(void)
{
	static const struct {
		unsigned format, channels, kib;
	} formats[] = {
		{0x01, 1, 64},
		{0x08, 4, 256},
		{0x02, 2, 256},
		{0x10, 4, 512},
		{0x03, 1, 256},
		{0x20, 4, 1024},
		{0xc2, 4, 256},
		{0xc5, 4, 512},
		{0xc9, 1, 128},
		{0xc7, 2, 128},
		{0x91, 4, 32},
		{0x98, 1, 32}, /* BC1, BC4: half a byte each */
		{0x93, 4, 64},
		{0x9a, 2, 64},
		{0x9e, 4, 64}, /* BC2, BC5, BC7: a byte */
		{0xb0, 3, 96},
		{0x9f, 3, 192},
		{0xa2, 3, 128},
		{0xa4, 3, 256}, /* NV12, P010, ... */
		{0xa5, 2, 128},
		{0xa6, 4, 256},
		{0xa9, 4, 256},
		{0xb1, 4, 512},
		{0xb2, 3, 192},
		{0xb3, 3, 384},
		{0xb5, 3, 384},
		{0x50, 4, 256},
		{0x51, 4, 128},
		{0x54, 3, 192},
		{0x5b, 3, 128},
		{0x5e, 3, 384},
		{0x7777, 1, 0},
	};

	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
		EXPECT_EQUAL(bytes_of(formats[i].format, formats[i].channels, 256, 256, 0),
			formats[i].kib * (uint64_t)KIB);
}

static void a_size_that_does_not_fit_is_the_greatest(void)
{
	EXPECT(bytes_of(CU_AD_FORMAT_FLOAT, 4, SIZE_MAX, 1, 1) == UINT64_MAX);
	EXPECT(bytes_of(CU_AD_FORMAT_FLOAT, 1, SIZE_MAX / 4, SIZE_MAX, SIZE_MAX) == UINT64_MAX);
	EXPECT(bytes_of(CU_AD_FORMAT_FLOAT, UINT32_MAX, UINT32_MAX, 1, SIZE_MAX) == UINT64_MAX);
	EXPECT(bytes_of(CU_AD_FORMAT_NV12, 3, SIZE_MAX - 1, 4, 1) == UINT64_MAX);
}

int main(void)
{
	every_format_of_the_header_has_its_size();
	a_size_that_does_not_fit_is_the_greatest();
	return 0;
}
