/* SPDX-License-Identifier: Apache-2.0
 *
 * What a module image declares: kernels with their parameters, variables, and how much memory it
 * takes. An image is PTX text or a cubin (ELF), alone or in a fat binary. Code is not read.
 *
 * Images are the program's: whatever is in them, reading one ends, and touches nothing outside it.
 */
#ifndef GPUSHARE_IMAGE_H
#define GPUSHARE_IMAGE_H

#include "cuda_driver.h"

#include <stdbool.h>

#define NAME_BYTES 512
#define PARAMETERS 128

struct parameter {
	uint32_t offset;
	uint32_t bytes;
};

struct kernel {
	char name[NAME_BYTES];
	uint32_t parameter_count;
	/* The first parameter is a .u64 whose name ends in duration_ns: how long a launch takes. */
	bool timed;
	struct parameter parameters[PARAMETERS];
	struct kernel *next;
};

struct variable {
	char name[NAME_BYTES];
	size_t bytes;
	CUdeviceptr address; /* given when the module is loaded */
	bool managed;	     /* the host may touch it */
	struct variable *next;
};

/* What a module takes of a card, as far as its image says so. Of PTX the code is not known before
 * it is compiled, so none is declared; of a compressed cubin only the size of the whole is known,
 * which is taken for code. Sums that do not fit are UINT64_MAX. */
struct declared_bytes {
	uint64_t globals;
	uint64_t managed; /* variables in unified memory, which no figure of the card has */
	uint64_t constants;
	uint64_t code;
};

struct image {
	struct kernel *kernels; /* in the image's order */
	struct variable *variables;
	struct declared_bytes declared;
};

/* Fill `image`, zeroed by the caller, and emptied by image_free whatever the result is. Of a fat
 * binary, the first entry that is not compressed. */
CUresult image_read(struct image *image, const void *data);

/* As image_read, of `size` bytes. */
CUresult image_read_sized(struct image *image, const void *data, size_t size);
void image_free(struct image *image);

/* Only what an image declares, without taking memory. Of a fat binary, what the largest entry does
 * that a card of `capability` (10 * major + minor) can run: the driver takes one of them. */
CUresult image_measure(struct declared_bytes *declared, const void *data, unsigned capability);
CUresult image_measure_sized(
	struct declared_bytes *declared, const void *data, size_t size, unsigned capability);

/* A whole file, NUL-terminated, from malloc; null if it cannot be read. */
char *image_load_file(const char *path, size_t *bytes);

#endif
