/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads PTX text as far as declarations: .entry with its parameters, and variables at module scope.
 * Bodies are skipped. Grammar: the PTX ISA, "Directives" and "State Spaces".
 */
#include "reader.h"

#include <string.h>

struct scanner {
	const char *at;
	const char *end;
	const char *token;
	size_t length; /* 0 at the end */
};

/* The character `ahead` bytes further; NUL at the end of the text, which need not be terminated. */
static char peek(const struct scanner *scanner, size_t ahead)
{
	return (size_t)(scanner->end - scanner->at) > ahead ? scanner->at[ahead] : '\0';
}

static bool is_space(char byte)
{
	return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static bool is_digit(char byte)
{
	return byte >= '0' && byte <= '9';
}

static bool is_letter(char byte)
{
	return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

static bool begins_name(char byte)
{
	return is_letter(byte) || byte == '_' || byte == '$' || byte == '%';
}

static bool word_byte(char byte)
{
	return begins_name(byte) || is_digit(byte) || byte == '.';
}

static void skip_comment(struct scanner *scanner, bool is_line)
{
	scanner->at += 2;
	while (peek(scanner, 0) && !(is_line ? peek(scanner, 0) == '\n'
					     : peek(scanner, 0) == '*' && peek(scanner, 1) == '/'))
		scanner->at++;
	if (!is_line && peek(scanner, 0))
		scanner->at += 2;
}

static void skip_blanks(struct scanner *scanner)
{
	for (;;) {
		while (is_space(peek(scanner, 0)))
			scanner->at++;
		if (peek(scanner, 0) != '/' || (peek(scanner, 1) != '/' && peek(scanner, 1) != '*'))
			return;
		skip_comment(scanner, peek(scanner, 1) == '/');
	}
}

static void skip_string(struct scanner *scanner)
{
	scanner->at++;
	while (peek(scanner, 0) && peek(scanner, 0) != '"')
		scanner->at += peek(scanner, 0) == '\\' && peek(scanner, 1) ? 2 : 1;
	scanner->at += peek(scanner, 0) == '"';
}

/* The next word (directives with their dot), string or single character. */
static bool next(struct scanner *scanner)
{
	skip_blanks(scanner);
	scanner->token = scanner->at;
	if (peek(scanner, 0) == '"')
		skip_string(scanner);
	else if (word_byte(peek(scanner, 0)))
		while (word_byte(peek(scanner, 0)))
			scanner->at++;
	else if (peek(scanner, 0))
		scanner->at++;
	scanner->length = (size_t)(scanner->at - scanner->token);
	return scanner->length > 0;
}

static bool is(const struct scanner *scanner, const char *word)
{
	return scanner->length == strlen(word) &&
	       memcmp(scanner->token, word, scanner->length) == 0;
}

static bool is_one_of(const struct scanner *scanner, const char *characters)
{
	return scanner->length == 1 && strchr(characters, *scanner->token);
}

/* The integer value of the token: decimal, octal or hexadecimal, optionally with a U suffix. */
static uint64_t number(const struct scanner *scanner)
{
	const char *at = scanner->token, *end = at + scanner->length;
	unsigned base = 10;
	uint64_t value = 0;

	if (end - at > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X')) {
		base = 16;
		at += 2;
	} else if (end - at > 1 && at[0] == '0') {
		base = 8;
	}
	for (; at < end; at++) {
		unsigned digit = is_digit(*at)	  ? (unsigned)(*at - '0')
				 : is_letter(*at) ? (unsigned)(*at | 0x20) - 'a' + 10
						  : base;
		if (digit >= base)
			break;
		value = sum(product(value, base), digit);
	}
	return value;
}

/* From just after '{' to after its '}'. Returns how many comma-separated values it contains. */
static uint64_t skip_block(struct scanner *scanner)
{
	uint64_t commas = 0;

	for (uint64_t depth = 1; depth > 0 && next(scanner);) {
		if (is(scanner, "{"))
			depth++;
		else if (is(scanner, "}"))
			depth--;
		else if (is(scanner, ","))
			commas++;
	}
	return commas + 1;
}

/* The size in bytes of a type such as .u64 or the last part of .v4.f32; 0 if the word is not a
 * type. */
static uint64_t type_bytes(const struct scanner *scanner)
{
	struct scanner digits = *scanner;

	if (is(scanner, ".pred"))
		return 1;
	if (scanner->length < 3 || scanner->length > 5 || scanner->token[0] != '.' ||
		!strchr("busf", scanner->token[1]) || !is_digit(scanner->token[2]))
		return 0;
	digits.token += 2;
	digits.length -= 2;
	return number(&digits) / 8;
}

struct declaration {
	const char *name;
	size_t length;
	uint64_t bytes;
	uint64_t alignment;
	bool is_u64;
	bool is_managed;
};

/* The dimension after a '['; 0: not given, the initializer determines it. */
static uint64_t read_dimension(struct scanner *scanner)
{
	next(scanner);
	return is(scanner, "]") ? 0 : number(scanner);
}

/* One declaration, up to any of the characters of `ends`, which becomes the token. */
static bool read_declaration(
	struct scanner *scanner, const char *ends, struct declaration *declaration)
{
	uint64_t element = 0, count = 1, vector = 1;

	*declaration = (struct declaration){.alignment = 0};
	while (next(scanner)) {
		if (is_one_of(scanner, ends))
			break;
		if (is(scanner, "{")) {
			uint64_t values = skip_block(scanner);
			count = count ? count : values;
		} else if (is(scanner, ".align")) {
			next(scanner);
			declaration->alignment = number(scanner);
		} else if (is(scanner, ".managed")) {
			declaration->is_managed = true;
		} else if (is(scanner, ".v2") || is(scanner, ".v4")) {
			vector = (uint64_t)(scanner->token[2] - '0');
		} else if (is(scanner, "[")) {
			count = product(count, read_dimension(scanner));
		} else if (type_bytes(scanner) > 0) {
			element = type_bytes(scanner);
			declaration->is_u64 = is(scanner, ".u64");
		} else if (!declaration->name && begins_name(*scanner->token)) {
			declaration->name = scanner->token;
			declaration->length = scanner->length;
		}
	}
	declaration->bytes = product(element * vector, count);
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
	uint64_t offset = 0;

	do {
		if (!read_declaration(scanner, ",)", &declaration))
			break;
		if (kernel->parameter_count == PARAMETERS || declaration.alignment == 0 ||
			declaration.alignment > UINT16_MAX || declaration.bytes > UINT16_MAX)
			return CUDA_ERROR_INVALID_PTX;
		if (kernel->parameter_count == 0)
			kernel->timed =
				declaration.is_u64 && ends_with(&declaration, "duration_ns");
		offset = (offset + declaration.alignment - 1) / declaration.alignment *
			 declaration.alignment;
		kernel->parameters[kernel->parameter_count++] =
			(struct parameter){(uint32_t)offset, (uint32_t)declaration.bytes};
		offset += declaration.bytes;
	} while (is(scanner, ","));
	return is(scanner, ")") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

static CUresult read_entry(struct scanner *scanner, struct image *image)
{
	struct kernel *kernel = NULL;
	CUresult result = CUDA_SUCCESS;

	if (!next(scanner))
		return CUDA_ERROR_INVALID_PTX;
	if (image) {
		kernel = image_add_kernel(image, scanner->token, scanner->length);
		if (!kernel)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* Parameters, then performance directives, then the body (or none: a declaration). */
	while (result == CUDA_SUCCESS && next(scanner) && !is_one_of(scanner, "{;")) {
		if (kernel && is(scanner, "("))
			result = read_parameters(scanner, kernel);
	}
	if (is(scanner, "{"))
		skip_block(scanner);
	return result;
}

/* With the state space as the token. */
static CUresult read_variable(struct scanner *scanner, struct reader *reader, bool is_external)
{
	struct declaration declaration;
	struct variable *variable;
	uint64_t *bytes =
		is(scanner, ".const") ? &reader->declared.constants : &reader->declared.globals;

	if (!read_declaration(scanner, ";", &declaration) || is_external)
		return CUDA_SUCCESS;
	if (declaration.is_managed)
		bytes = &reader->declared.managed;
	*bytes = sum(*bytes, declaration.bytes);
	if (!reader->image)
		return CUDA_SUCCESS;
	variable = image_add_variable(
		reader->image, declaration.name, declaration.length, declaration.bytes);
	if (!variable)
		return CUDA_ERROR_OUT_OF_MEMORY;
	variable->managed = declaration.is_managed;
	return CUDA_SUCCESS;
}

CUresult ptx_read(struct reader *reader, const struct extent *data)
{
	struct extent text = extent_text(data);
	struct scanner scanner = {
		.at = (const char *)text.at, .end = (const char *)text.at + text.size};
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
			result = read_entry(&scanner, reader->image);
		} else if (is(&scanner, ".global") || is(&scanner, ".const")) {
			result = read_variable(&scanner, reader, external);
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
