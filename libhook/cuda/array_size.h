/* SPDX-License-Identifier: Apache-2.0
 *
 * What an array takes of a card. Its memory is block-linear: elements lie in tiles, and tiles in
 * blocks of them, so that rows take whole tiles and a slice takes whole blocks.
 */
#ifndef GPUSHARE_ARRAY_SIZE_H
#define GPUSHARE_ARRAY_SIZE_H

#include "cuda_driver.h"

/* Bytes of an array; UINT64_MAX where that does not fit, 0 where nothing is known of the format:
 * then what it takes is in the measured overhead. */
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

/* Bytes of all levels of a mipmapped array, of which there are no more than fit. */
uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

#endif
