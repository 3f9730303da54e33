/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the readers of the three formats.
 */
#ifndef GPUSHARE_IMAGE_READER_H
#define GPUSHARE_IMAGE_READER_H

#include "extent.h"
#include "image.h"

struct reader {
	struct image *image; /* NULL: only measure what is declared */
	struct declared_bytes declared;
	unsigned capability; /* 0: any card */
};

CUresult ptx_read(struct reader *reader, const struct extent *data);
CUresult cubin_read(struct reader *reader, const struct extent *data);
CUresult fatbin_read(struct reader *reader, const struct extent *data);

/* NULL: out of memory, or the name is too long. */
struct kernel *image_add_kernel(struct image *image, const char *name, size_t length);
struct variable *image_add_variable(
	struct image *image, const char *name, size_t length, size_t bytes);

static inline uint64_t sum(uint64_t one, uint64_t other)
{
	uint64_t both;

	return __builtin_add_overflow(one, other, &both) ? UINT64_MAX : both;
}

static inline uint64_t product(uint64_t one, uint64_t other)
{
	uint64_t both;

	return __builtin_mul_overflow(one, other, &both) ? UINT64_MAX : both;
}

#endif
