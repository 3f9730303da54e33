/* SPDX-License-Identifier: Apache-2.0
 *
 * The declarations of a module image: kernels with their parameters, variables, and how much memory
 * it takes. An image is PTX text or a cubin (ELF), alone or in a fat binary. Code is not read.
 *
 * Images come from the program: whatever they contain, reading one terminates, and reads nothing
 * outside it.
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
	/* The first parameter is a .u64 whose name ends in duration_ns: the duration of a launch.
	 */
	bool timed;
	struct parameter parameters[PARAMETERS];
	struct kernel *next;
};

struct variable {
	char name[NAME_BYTES];
	size_t bytes;
	CUdeviceptr address; /* set when the module is loaded */
	bool managed;	     /* the host may access it */
	struct variable *next;
};

/* The memory of a module on a card, as far as its image declares it. The size of PTX code is
 * unknown before it is compiled, so none is declared; of a compressed cubin only the total size is
 * known, which counts as code. Sums that overflow are UINT64_MAX. */
struct declared_bytes {
	uint64_t globals;
	uint64_t managed; /* variables in managed memory, which no figure of the card includes */
	uint64_t constants;
	uint64_t code;
};

struct image {
	struct kernel *kernels; /* in the image's order */
	struct variable *variables;
	struct declared_bytes declared;
};

/* Fill `image`, which the caller has zeroed and must release with image_free, whatever the result
 * is. For a fat binary: the first entry that is not compressed. */
CUresult image_read(struct image *image, const void *data);

/* Like image_read, for `size` bytes. */
CUresult image_read_sized(struct image *image, const void *data, size_t size);
void image_free(struct image *image);

/* Only what an image declares, without allocating memory. For a fat binary: the largest of the
 * entries that a card of `capability` (10 * major + minor) can run; the driver loads one of
 * them. */
CUresult image_measure(struct declared_bytes *declared, const void *data, unsigned capability);
CUresult image_measure_sized(
	struct declared_bytes *declared, const void *data, size_t size, unsigned capability);

/* A whole file, NUL-terminated, allocated with malloc; NULL if it cannot be read. */
char *image_load_file(const char *path, size_t *bytes);

#endif
