/* SPDX-License-Identifier: Apache-2.0
 *
 * What a module image declares: kernels with their parameters, and variables. An image is PTX text
 * or a cubin (ELF), alone or in a fat binary. Code is not read.
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
	struct variable *next;
};

struct image {
	struct kernel *kernels; /* in the image's order */
	struct variable *variables;
};

/* Fill `image`, zeroed by the caller, and emptied by image_free whatever the result is. */
CUresult image_read(struct image *image, const void *data);
CUresult ptx_read(struct image *image, const char *text);
CUresult cubin_read(struct image *image, const unsigned char *elf);
CUresult fatbin_read(struct image *image, const unsigned char *fat);
void image_free(struct image *image);

struct kernel *image_add_kernel(struct image *image, const char *name, size_t length);
bool image_add_variable(struct image *image, const char *name, size_t length, size_t bytes);

/* A whole file, NUL-terminated, from malloc; null if it cannot be read. */
char *image_load_file(const char *path, size_t *bytes);

#endif
