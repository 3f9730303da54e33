/* SPDX-License-Identifier: Apache-2.0
 *
 * The size of an array on a card. Its memory is block-linear: elements are stored in tiles, and
 * tiles in blocks, so that rows take whole tiles and a slice takes whole blocks.
 */
#ifndef GPUSHARE_ARRAY_SIZE_H
#define GPUSHARE_ARRAY_SIZE_H

#include "cuda_driver.h"

/* Bytes of an array; UINT64_MAX if they overflow, 0 if the format is unknown: then its size is in
 * the measured overhead. */
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);

/* Bytes of all levels of a mipmapped array; excess levels are ignored. */
uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

#endif
