/* SPDX-License-Identifier: Apache-2.0
 *
 * Images made by hand, as ptxas and fatbinary make them.
 */
#ifndef GPUSHARE_TESTS_IMAGE_MADE_H
#define GPUSHARE_TESTS_IMAGE_MADE_H

#include <stddef.h>
#include <stdint.h>

#define MADE_BYTES 65536

#define PTX_HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

enum { MADE_GLOBALS = 4096, MADE_CONSTANTS = 256, MADE_MANAGED = 1024, MADE_CODE = 512 };

/* Write a cubin with one kernel "k" of two parameters, one global variable "table" of
 * MADE_GLOBALS, one managed one "shared" of MADE_MANAGED, constants and code, and shared memory;
 * return its size. `scale` multiplies the global's size. */
size_t made_cubin(unsigned char *to, uint64_t scale);

enum { MADE_PTX = 1, MADE_CUBIN = 2, MADE_COMPRESSED = 0x2000 };

struct made_entry {
	uint16_t kind;
	unsigned architecture;
	const void *payload;
	uint64_t bytes;
	uint64_t flags;
	uint64_t decompressed_bytes;
};

/* Write a fat binary of these entries; return its size. */
size_t made_fatbin(unsigned char *to, const struct made_entry *entries, size_t count);

#endif
