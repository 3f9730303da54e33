/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u

CUresult image_read(struct image *image, const void *data)
{
	uint32_t magic;

	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&magic, data, sizeof(magic));
	if (memcmp(data, ELFMAG, SELFMAG) == 0)
		return cubin_read(image, data);
	if (magic == FATBIN_MAGIC)
		return fatbin_read(image, data);
	if (magic == WRAPPER_MAGIC) {
		const void *inner;

		memcpy(&inner, (const char *)data + 8, sizeof(inner));
		return fatbin_read(image, inner);
	}
	return ptx_read(image, data);
}

void image_free(struct image *image)
{
	while (image->kernels) {
		struct kernel *kernel = image->kernels;

		image->kernels = kernel->next;
		free(kernel);
	}
	while (image->variables) {
		struct variable *variable = image->variables;

		image->variables = variable->next;
		free(variable);
	}
}

struct kernel *image_add_kernel(struct image *image, const char *name, size_t length)
{
	struct kernel **link = &image->kernels;
	struct kernel *kernel = length < NAME_BYTES ? calloc(1, sizeof(*kernel)) : NULL;

	if (!kernel)
		return NULL;
	memcpy(kernel->name, name, length);
	while (*link)
		link = &(*link)->next;
	*link = kernel;
	return kernel;
}

bool image_add_variable(struct image *image, const char *name, size_t length, size_t bytes)
{
	struct variable *variable = length < NAME_BYTES ? calloc(1, sizeof(*variable)) : NULL;

	if (!variable)
		return false;
	memcpy(variable->name, name, length);
	variable->bytes = bytes;
	variable->next = image->variables;
	image->variables = variable;
	return true;
}

char *image_load_file(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rbe");
	char *text = NULL;
	long length;

	if (!file)
		return NULL;
	if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0 &&
		fseek(file, 0, SEEK_SET) == 0)
		text = malloc((size_t)length + 1);
	if (text) {
		*bytes = fread(text, 1, (size_t)length, file);
		text[*bytes] = '\0';
	}
	fclose(file);
	return text;
}
