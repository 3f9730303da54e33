/* SPDX-License-Identifier: Apache-2.0 */
#include "reader.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC "\x50\xed\x55\xba"
#define WRAPPER_MAGIC "\xb1\x43\x62\x46"
#define WRAPPER_POINTER 8 /* of a wrapper: the location of the fat binary */

/* Byte by byte: a text may be shorter than a magic number. */
static bool begins_with(const struct extent *data, const char *magic)
{
	for (uint64_t i = 0; i < 4; i++) {
		unsigned char byte;
		if (!extent_copy(&byte, data, i, 1) || byte != (unsigned char)magic[i])
			return false;
	}
	return true;
}

static CUresult read_any(struct reader *reader, const struct extent *data)
{
	if (begins_with(data, ELFMAG))
		return cubin_read(reader, data);
	if (begins_with(data, FATBIN_MAGIC))
		return fatbin_read(reader, data);
	if (begins_with(data, WRAPPER_MAGIC)) {
		const void *inner;
		if (!extent_copy(&inner, data, WRAPPER_POINTER, sizeof(inner)) || !inner)
			return CUDA_ERROR_INVALID_IMAGE;
		struct extent fat = extent_from(inner);
		return begins_with(&fat, FATBIN_MAGIC) ? fatbin_read(reader, &fat)
						       : CUDA_ERROR_INVALID_IMAGE;
	}
	return ptx_read(reader, data);
}

static CUresult read_image(struct image *image, const struct extent *data)
{
	struct reader reader = {.image = image};

	if (!data->at)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = read_any(&reader, data);
	image->declared = reader.declared;
	return result;
}

CUresult image_read(struct image *image, const void *data)
{
	struct extent extent = extent_from(data);

	return read_image(image, &extent);
}

CUresult image_read_sized(struct image *image, const void *data, size_t size)
{
	struct extent extent = extent_of(data, size);

	return read_image(image, &extent);
}

static CUresult measure(
	struct declared_bytes *declared, const struct extent *data, unsigned capability)
{
	struct reader reader = {.capability = capability};

	if (!data->at)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = read_any(&reader, data);
	*declared = reader.declared;
	return result;
}

CUresult image_measure(struct declared_bytes *declared, const void *data, unsigned capability)
{
	struct extent extent = extent_from(data);

	return measure(declared, &extent, capability);
}

CUresult image_measure_sized(
	struct declared_bytes *declared, const void *data, size_t size, unsigned capability)
{
	struct extent extent = extent_of(data, size);

	return measure(declared, &extent, capability);
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

struct variable *image_add_variable(
	struct image *image, const char *name, size_t length, size_t bytes)
{
	struct variable *variable = length < NAME_BYTES ? calloc(1, sizeof(*variable)) : NULL;

	if (!variable)
		return NULL;
	memcpy(variable->name, name, length);
	variable->bytes = bytes;
	variable->next = image->variables;
	image->variables = variable;
	return variable;
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
