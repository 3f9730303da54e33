/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory.
 */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include <stdint.h>

/* The memory that the driver takes of the card for a buffer of this size, in addition to the free
 * rest of the block that small buffers share. UINT64_MAX if that does not fit into 64 bits. */
uint64_t linear_bytes(uint64_t requested);

/* Small buffers, and parts of pools, start at multiples of so many bytes (cuMemAllocAsync:
 * "suitably aligned"; with NVIDIA's driver never observed below 512). */
#define SHARED_GRANULE_BYTES UINT64_C(512)

#endif
