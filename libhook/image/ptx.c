/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads PTX text as far as declarations go: .entry with its parameters, and variables at module
 * scope. Bodies are skipped. Grammar: the PTX ISA, "Directives" and "State Spaces".
 */
#include "image.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct scanner {
	const char *at;
	const char *token;
	size_t length; /* 0 at the end */
};

static void skip_blanks(struct scanner *scanner)
{
	for (;;) {
		while (isspace((unsigned char)*scanner->at))
			scanner->at++;
		if (strncmp(scanner->at, "//", 2) == 0) {
			scanner->at += strcspn(scanner->at, "\n");
		} else if (strncmp(scanner->at, "/*", 2) == 0) {
			const char *end = strstr(scanner->at + 2, "*/");

			scanner->at = end ? end + 2 : scanner->at + strlen(scanner->at);
		} else {
			return;
		}
	}
}

static bool word_byte(char byte)
{
	return isalnum((unsigned char)byte) || byte == '_' || byte == '$' || byte == '%' ||
	       byte == '.';
}

/* The next word (directives with their dot), string or single character. */
static bool next(struct scanner *scanner)
{
	skip_blanks(scanner);
	scanner->token = scanner->at;
	if (*scanner->at == '"') {
		scanner->at++;
		while (*scanner->at && *scanner->at != '"')
			scanner->at += *scanner->at == '\\' && scanner->at[1] ? 2 : 1;
		scanner->at += *scanner->at == '"';
	} else if (word_byte(*scanner->at)) {
		while (word_byte(*scanner->at))
			scanner->at++;
	} else if (*scanner->at) {
		scanner->at++;
	}
	scanner->length = (size_t)(scanner->at - scanner->token);
	return scanner->length > 0;
}

static bool is(const struct scanner *scanner, const char *word)
{
	return scanner->length == strlen(word) &&
	       memcmp(scanner->token, word, scanner->length) == 0;
}

/* From just after '{' to after its '}'. */
static void skip_block(struct scanner *scanner)
{
	for (unsigned int depth = 1; depth > 0 && next(scanner);) {
		if (is(scanner, "{"))
			depth++;
		else if (is(scanner, "}"))
			depth--;
	}
}

/* Bytes of a type such as .u64 or .v4.f32's last part; 0 if the word is no type. */
static size_t type_bytes(const struct scanner *scanner)
{
	const char *digits = scanner->token + 2;

	if (is(scanner, ".pred"))
		return 1;
	if (scanner->length < 3 || scanner->length > 5 || scanner->token[0] != '.' ||
		!strchr("busf", scanner->token[1]) || !isdigit((unsigned char)*digits))
		return 0;
	return strtoul(digits, NULL, 10) / 8;
}

struct declaration {
	const char *name;
	size_t length;
	size_t bytes;
	size_t alignment;
	bool is_u64;
};

/* One declaration, up to any of the characters of `ends`, which becomes the token. */
static bool read_declaration(
	struct scanner *scanner, const char *ends, struct declaration *declaration)
{
	size_t element = 0, count = 1, vector = 1;

	*declaration = (struct declaration){.alignment = 0};
	while (next(scanner)) {
		if (scanner->length == 1 && strchr(ends, *scanner->token))
			break;
		if (is(scanner, "{")) {
			skip_block(scanner); /* an initialiser */
		} else if (is(scanner, ".align")) {
			next(scanner);
			declaration->alignment = strtoul(scanner->token, NULL, 10);
		} else if (is(scanner, ".v2") || is(scanner, ".v4")) {
			vector = (size_t)(scanner->token[2] - '0');
		} else if (is(scanner, "[")) {
			skip_blanks(scanner);
			count *= strtoul(scanner->at, NULL, 0);
		} else if (type_bytes(scanner) > 0) {
			element = type_bytes(scanner);
			declaration->is_u64 = is(scanner, ".u64");
		} else if (!declaration->name && *scanner->token != '.' &&
			   (isalpha((unsigned char)*scanner->token) ||
				   strchr("_$%", *scanner->token))) {
			declaration->name = scanner->token;
			declaration->length = scanner->length;
		}
	}
	declaration->bytes = element * vector * count;
	if (declaration->alignment == 0)
		declaration->alignment = element * vector;
	return declaration->name != NULL;
}

static bool ends_with(const struct declaration *declaration, const char *end)
{
	size_t length = strlen(end);

	return declaration->length >= length &&
	       memcmp(declaration->name + declaration->length - length, end, length) == 0;
}

static CUresult read_parameters(struct scanner *scanner, struct kernel *kernel)
{
	struct declaration declaration;
	size_t offset = 0;

	do {
		struct parameter *parameter = &kernel->parameters[kernel->parameter_count];

		if (!read_declaration(scanner, ",)", &declaration))
			break;
		if (kernel->parameter_count == PARAMETERS || declaration.alignment == 0)
			return CUDA_ERROR_INVALID_PTX;
		if (kernel->parameter_count == 0)
			kernel->timed =
				declaration.is_u64 && ends_with(&declaration, "duration_ns");
		offset = (offset + declaration.alignment - 1) / declaration.alignment *
			 declaration.alignment;
		parameter->offset = (uint32_t)offset;
		parameter->bytes = (uint32_t)declaration.bytes;
		offset += declaration.bytes;
		kernel->parameter_count++;
	} while (is(scanner, ","));
	return is(scanner, ")") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

static CUresult read_entry(struct scanner *scanner, struct image *image)
{
	struct kernel *kernel;
	CUresult result = CUDA_SUCCESS;

	if (!next(scanner))
		return CUDA_ERROR_INVALID_PTX;
	kernel = image_add_kernel(image, scanner->token, scanner->length);
	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Parameters, then performance directives, then the body (or none: a declaration). */
	while (result == CUDA_SUCCESS && next(scanner) && !is(scanner, "{") && !is(scanner, ";")) {
		if (is(scanner, "("))
			result = read_parameters(scanner, kernel);
	}
	if (is(scanner, "{"))
		skip_block(scanner);
	return result;
}

CUresult ptx_read(struct image *image, const char *text)
{
	struct scanner scanner = {.at = text};
	struct declaration declaration;
	bool versioned = false, external = false;
	CUresult result = CUDA_SUCCESS;

	while (result == CUDA_SUCCESS && next(&scanner)) {
		if (is(&scanner, ".version")) {
			versioned = true;
		} else if (!versioned) {
			return CUDA_ERROR_INVALID_IMAGE; /* .version comes first in PTX */
		} else if (is(&scanner, ".extern")) {
			external = true;
		} else if (is(&scanner, ".entry")) {
			result = read_entry(&scanner, image);
		} else if (is(&scanner, ".global") || is(&scanner, ".const")) {
			if (read_declaration(&scanner, ";", &declaration) && !external &&
				!image_add_variable(image, declaration.name, declaration.length,
					declaration.bytes))
				result = CUDA_ERROR_OUT_OF_MEMORY;
			external = false;
		} else if (is(&scanner, "{")) {
			skip_block(&scanner);
			external = false;
		} else if (is(&scanner, ";")) {
			external = false;
		}
	}
	return result == CUDA_SUCCESS && !versioned ? CUDA_ERROR_INVALID_IMAGE : result;
}
