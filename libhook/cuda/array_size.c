/* SPDX-License-Identifier: Apache-2.0 */
#include "array_size.h"

#include <stdbool.h>

/* A tile ("GOB") is 64 bytes by 8 rows; a block is one tile wide and up to 16 tiles high, lower if
 * there are few rows: the open class headers of the hardware. The driver does not report the height
 * that it chooses; anything above this is measured, as is the depth of three-dimensional blocks. */
#define TILE_BYTES 64
#define TILE_ROWS 8
#define BLOCK_TILES 16
#define LEVEL_BYTES 512 /* each mipmap level starts at a whole tile */

/* How elements are stored: as units of `unit` bytes, each for `side` by `side` elements; video
 * formats have a second plane for both chroma values that is narrower and lower by these powers of
 * two. */
struct storage {
	unsigned bytes; /* 0: the format is not known */
	unsigned side;
	bool by_channel; /* bytes per channel */
	bool has_chroma;
	unsigned narrower, lower;
};

#define CHANNELS(bytes) (struct storage){bytes, 1, true, false, 0, 0}
#define PACKED(bytes) (struct storage){bytes, 1, false, false, 0, 0}
#define BLOCKS(bytes) (struct storage){bytes, 4, false, false, 0, 0}
#define PLANES_420(bytes) (struct storage){bytes, 1, false, true, 1, 1}
#define PLANES_422(bytes) (struct storage){bytes, 1, false, true, 1, 0}
#define PLANES_444(bytes) (struct storage){bytes, 1, false, true, 0, 0}

/* CUarray_format of cuda.h, CUDA 13. */
static struct storage storage_of(CUarray_format format)
{
	switch ((int)format) {
	case 0x01: /* UNSIGNED_INT8 */
	case 0x08: /* SIGNED_INT8 */
	case 0xc0: /* UNORM_INT8X1, X2, X4, SNORM alike */
	case 0xc1:
	case 0xc2:
	case 0xc6:
	case 0xc7:
	case 0xc8:
		return CHANNELS(1);
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
	case 0xc3: /* UNORM_INT16X1, X2, X4, SNORM alike */
	case 0xc4:
	case 0xc5:
	case 0xc9:
	case 0xca:
	case 0xcb:
		return CHANNELS(2);
	case 0x03: /* UNSIGNED_INT32 */
	case 0x0a: /* SIGNED_INT32 */
	case 0x20: /* FLOAT */
		return CHANNELS(4);
	case 0x91: /* BC1, BC4 */
	case 0x92:
	case 0x97:
	case 0x98:
		return BLOCKS(8);
	case 0x93: /* BC2, BC3 */
	case 0x94:
	case 0x95:
	case 0x96:
	case 0x99: /* BC5, BC6H, BC7 */
	case 0x9a:
	case 0x9b:
	case 0x9c:
	case 0x9d:
	case 0x9e:
		return BLOCKS(16);
	case 0xb0: /* NV12 */
	case 0x53: /* UINT8_SEMIPLANAR_420 */
	case 0x59: /* UINT8_PLANAR_420 */
		return PLANES_420(1);
	case 0x9f: /* P010, P016 */
	case 0xa1:
	case 0x54: /* UINT16_SEMIPLANAR_420 */
	case 0x5a: /* UINT16_PLANAR_420 */
		return PLANES_420(2);
	case 0xa2: /* NV16 */
	case 0x55: /* UINT8_SEMIPLANAR_422 */
	case 0x5b: /* UINT8_PLANAR_422 */
		return PLANES_422(1);
	case 0xa3: /* P210, P216 */
	case 0xa4:
	case 0x56: /* UINT16_SEMIPLANAR_422 */
	case 0x5c: /* UINT16_PLANAR_422 */
		return PLANES_422(2);
	case 0xb2: /* Y444_PLANAR8, YUV444_8bit_SemiPlanar */
	case 0xb4:
	case 0x57: /* UINT8_SEMIPLANAR_444 */
	case 0x5d: /* UINT8_PLANAR_444 */
		return PLANES_444(1);
	case 0xb3: /* Y444_PLANAR10, YUV444_16bit_SemiPlanar */
	case 0xb5:
	case 0x58: /* UINT16_SEMIPLANAR_444 */
	case 0x5e: /* UINT16_PLANAR_444 */
		return PLANES_444(2);
	case 0xa5: /* YUY2 */
	case 0x51: /* UINT8_PACKED_422 */
		return PACKED(2);
	case 0xa6: /* Y210, Y216, AYUV, Y410 */
	case 0xa7:
	case 0xa8:
	case 0xa9:
	case 0x50: /* UNORM_INT_101010_2 */
	case 0x52: /* UINT8_PACKED_444 */
		return PACKED(4);
	case 0xb1: /* Y416 */
		return PACKED(8);
	default:
		return PACKED(0);
	}
}

static uint64_t product(uint64_t one, uint64_t other)
{
	uint64_t both;

	return __builtin_mul_overflow(one, other, &both) ? UINT64_MAX : both;
}

static uint64_t sum(uint64_t one, uint64_t other)
{
	uint64_t both;

	return __builtin_add_overflow(one, other, &both) ? UINT64_MAX : both;
}

/* How many units of `unit` hold `count`. */
static uint64_t units(uint64_t count, uint64_t unit)
{
	return count / unit + (count % unit != 0);
}

static uint64_t round_up(uint64_t count, uint64_t unit)
{
	return product(units(count, unit), unit);
}

/* Rows that `height` of them take: whole blocks, no higher than necessary. */
static uint64_t block_rows(uint64_t height)
{
	uint64_t block = TILE_ROWS;

	if (height <= 1)
		return 1;
	while (block < height && block < TILE_ROWS * BLOCK_TILES)
		block *= 2;
	return round_up(height, block);
}

static uint64_t plane_bytes(uint64_t width_bytes, uint64_t rows)
{
	return product(round_up(width_bytes, TILE_BYTES), block_rows(rows));
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	const struct storage storage = storage_of(descriptor->Format);
	const uint64_t width = descriptor->Width, height = descriptor->Height;
	const uint64_t slices = descriptor->Depth ? descriptor->Depth : 1;
	const uint64_t unit_bytes =
		product(storage.bytes, storage.by_channel ? descriptor->NumChannels : 1);

	if (storage.bytes == 0)
		return 0;
	uint64_t bytes = plane_bytes(
		product(units(width, storage.side), unit_bytes), units(height, storage.side));
	if (storage.has_chroma)
		bytes = sum(
			bytes, plane_bytes(product(units(width, UINT64_C(1) << storage.narrower),
						   2 * unit_bytes),
				       units(height, UINT64_C(1) << storage.lower)));
	return product(bytes, slices);
}

static size_t halved(size_t size, unsigned int times)
{
	return size > 0 && size >> times == 0 ? 1 : size >> times;
}

/* Levels do not get smaller in the direction of layers, including cube faces. */
static bool has_layers(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	return descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

/* Down to one element in each direction; the driver creates no more levels than these. */
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

uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
	uint64_t bytes = 0;

	if (levels > most_levels(descriptor))
		levels = most_levels(descriptor);
	for (unsigned int i = 0; i < levels; i++) {
		CUDA_ARRAY3D_DESCRIPTOR level = *descriptor;
		level.Width = halved(level.Width, i);
		level.Height = halved(level.Height, i);
		if (!has_layers(descriptor))
			level.Depth = halved(level.Depth, i);
		bytes = sum(bytes, round_up(array_bytes(&level), LEVEL_BYTES));
	}
	return bytes;
}
