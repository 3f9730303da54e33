/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded JSON reader: the caller walks a document it holds in memory, in one pass, and skips
 * what it does not look at. It allocates nothing; strings are decoded where they lie, so the text
 * must be writable. The first error sticks: every call after it answers false, so that loops end.
 *
 *	json_begin(&json, text, length);
 *	if (json_enter_object(&json))
 *		while (json_next_key(&json, &key))
 *			if (json_text_is(&key, "id"))
 *				json_string(&json, &id);
 *			else
 *				json_skip(&json);
 */
#ifndef GPUSHARE_RUNTIME_JSON_H
#define GPUSHARE_RUNTIME_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* OCI's config.json is 8 deep; whoever nests deeper means to exhaust a stack. */
#define JSON_DEPTH_MAX 64

struct json {
	char *start;
	char *at;
	char *end;
	unsigned depth;
	bool fresh; /* just inside a bracket: no comma belongs before the next value */
	const char *error;
};

/* Bytes of the document, decoded, not NUL-terminated; may hold NUL (from \u0000). */
struct json_text {
	char *at;
	size_t length;
};

void json_begin(struct json *json, char *text, size_t length);

/* True, and inside, when the next value is an object (an array); false leaves it unread. */
bool json_enter_object(struct json *json);
bool json_enter_array(struct json *json);
/* The next member's key: its value must be read or skipped before the next call. False: no more. */
bool json_next_key(struct json *json, struct json_text *key);
/* True when another element follows, which must be read or skipped. */
bool json_next_element(struct json *json);

/* True when the next value is of this kind; false leaves it unread. */
bool json_string(struct json *json, struct json_text *text);
bool json_integer(struct json *json, long long *value); /* 16 digits at most, and no fraction */
bool json_boolean(struct json *json, bool *value);
bool json_null(struct json *json);

void json_skip(struct json *json);
/* True when the document was well-formed and nothing but white space is left. */
bool json_finish(struct json *json);
/* Bytes read so far: with an error, where it is. */
size_t json_offset(const struct json *json);

bool json_text_is(const struct json_text *text, const char *word);
/* `text` as a C string in `to`; false when it is longer than that or holds a NUL. */
bool json_text_copy(const struct json_text *text, char *to, size_t room);

/* Append `text` as a quoted JSON string at `*length`, never past `room`; false when it did not fit.
 * Bytes that are no UTF-8 become U+FFFD: a packet with them in it is refused as a whole. */
bool json_quote(char *to, size_t room, size_t *length, const char *text);

#endif
