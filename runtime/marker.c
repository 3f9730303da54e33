/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memmem, memrchr */
#include "marker.h"

#include <fnmatch.h>
#include <string.h>

enum shape {
	NAME,
	PREFIX,
	BASENAME,
	GLOB,
};

struct row {
	enum marker_source source;
	enum shape shape;
	enum marker strength;
	const char *text;
	size_t length;
};

static const struct row rows[] = {
#define MARKER(source, shape, text, strength)                                                      \
	{MARKER_##source, shape, MARKER_##strength, text, sizeof(text) - 1},
#include "markers.inc"
#undef MARKER
};

#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))
#define GLOBBED_MAX 256 /* longer than any name that a glob of the table is for */

static bool starts(const struct row *row, const char *at, size_t length)
{
	return length >= row->length && memcmp(at, row->text, row->length) == 0;
}

static bool globs(const struct row *row, const struct json_text *text)
{
	char name[GLOBBED_MAX];
	/* Nearly every name differs in its first byte: fnmatch is not asked about those. */
	return text->length && *text->at == *row->text &&
	       json_text_copy(text, name, sizeof(name)) && fnmatch(row->text, name, 0) == 0;
}

static bool fits(const struct row *row, const struct json_text *text)
{
	switch (row->shape) {
	case NAME:
		return text->length == row->length && starts(row, text->at, text->length);
	case PREFIX:
		return starts(row, text->at, text->length);
	case BASENAME: {
		const char *slash = memrchr(text->at, '/', text->length);
		const char *base = slash ? slash + 1 : text->at;
		return starts(row, base, text->length - (size_t)(base - text->at));
	}
	case GLOB:
		return globs(row, text);
	}
	return false;
}

enum marker marker_of(enum marker_source source, const struct json_text *text)
{
	for (const struct row *row = rows; row < rows + ROW_COUNT; row++)
		if (row->source == source && fits(row, text))
			return row->strength;
	return MARKER_NONE;
}

const char *marker_source_name(enum marker_source source)
{
	static const char *const names[] = {"annotation", "environment variable", "device",
		"mount of", "mount at", "hook", "hook with"};
	return names[source];
}

/* What every text that fits has in it: of a glob what is before its first wildcard. */
static size_t fixed_length(const struct row *row)
{
	return row->shape == GLOB ? strcspn(row->text, "*?[") : row->length;
}

bool marker_mentioned(const char *bytes, size_t length)
{
	for (const struct row *row = rows; row < rows + ROW_COUNT; row++)
		if (row->strength == MARKER_STRONG && row->shape != BASENAME &&
			memmem(bytes, length, row->text, fixed_length(row)))
			return true;
	return false;
}
