/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: memory that only copies reach. Its rows lie one after another.
 */
#ifndef GPUSHARE_SIMULATOR_ARRAY_H
#define GPUSHARE_SIMULATOR_ARRAY_H

#include "driver.h"

struct CUarray_st {
	uint32_t kind;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	size_t row_bytes;
	size_t rows; /* of one slice */
	CUdeviceptr base;
};

bool array_valid(CUarray array);

#endif
