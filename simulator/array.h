/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: memory that only copies can access. Rows are stored one after another here, in as much
 * space as the tiles of a card's block-linear memory take.
 */
#ifndef GPUSHARE_SIMULATOR_ARRAY_H
#define GPUSHARE_SIMULATOR_ARRAY_H

#include "driver.h"

struct CUarray_st {
	uint32_t kind;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	size_t element_bytes, row_bytes;
	size_t rows; /* of one slice */
	CUdeviceptr base;
	CUmipmappedArray mipmap; /* of which it is a level; null: it has its own memory */
};

struct CUmipmappedArray_st {
	uint32_t kind;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUdeviceptr base;
	unsigned int level_count;
	struct CUarray_st levels[];
};

bool array_valid(CUarray array);

/* An array without memory; an error if there cannot be such an array. */
CUresult array_lay_out(struct CUarray_st *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
size_t array_bytes(const struct CUarray_st *array);

#endif
