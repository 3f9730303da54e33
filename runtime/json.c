/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdint.h>
#include <string.h>

static bool fail(struct json *json, const char *why)
{
	if (!json->error)
		json->error = why;
	return false;
}

void json_begin(struct json *json, char *text, size_t length)
{
	*json = (struct json){0};
	json->start = json->at = text;
	json->end = text + length;
}

size_t json_offset(const struct json *json)
{
	return (size_t)(json->at - json->start);
}

/* The next byte that is not white space, unread; NUL at the end and after an error. A NUL in the
 * document is no token either, so the two need no telling apart. */
static char peek(struct json *json)
{
	if (json->error)
		return '\0';
	while (json->at < json->end) {
		char c = *json->at;
		if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
			return c;
		json->at++;
	}
	return '\0';
}

static bool enter(struct json *json, char bracket)
{
	if (peek(json) != bracket)
		return false;
	if (json->depth == JSON_DEPTH_MAX)
		return fail(json, "nested too deeply");
	json->at++;
	json->depth++;
	json->fresh = true;
	return true;
}

bool json_enter_object(struct json *json)
{
	return enter(json, '{');
}

bool json_enter_array(struct json *json)
{
	return enter(json, '[');
}

/* Past the comma before the next member, or past `bracket`, which ends them. */
static bool next(struct json *json, char bracket)
{
	char c = peek(json);
	if (c == bracket) {
		json->at++;
		json->depth--;
		json->fresh = false;
		return false;
	}
	if (!json->fresh) {
		if (c != ',')
			return fail(json, "a comma or a closing bracket is missing");
		json->at++;
	}
	json->fresh = false;
	/* A bracket after a comma, or the end, is seen by the reader of the value. */
	return !json->error;
}

bool json_next_element(struct json *json)
{
	return next(json, ']');
}

bool json_next_key(struct json *json, struct json_text *key)
{
	if (!next(json, '}'))
		return false;
	if (!json_string(json, key))
		return fail(json, "a key is missing");
	if (peek(json) != ':')
		return fail(json, "a colon is missing");
	json->at++;
	return true;
}

static int hex_digit(char c)
{
	static const char digits[] = "0123456789abcdefABCDEF";
	const char *found = c ? strchr(digits, c) : NULL;
	if (!found)
		return -1;
	return (int)(found - digits) - (found - digits > 15 ? 6 : 0);
}

#define NO_CODE UINT32_MAX

/* The four digits at `at`, or NO_CODE. */
static uint32_t hex4(const char *at, const char *end)
{
	uint32_t value = 0;
	if (end - at < 4)
		return NO_CODE;
	for (int i = 0; i < 4; i++) {
		int digit = hex_digit(at[i]);
		if (digit < 0)
			return NO_CODE;
		value = value * 16 + (uint32_t)digit;
	}
	return value;
}

/* `code` in UTF-8 at `to`; never longer than the escape that it came from. */
static char *put_utf8(char *to, uint32_t code)
{
	if (code < 0x80) {
		*to++ = (char)code;
		return to;
	}
	if (code < 0x800) {
		*to++ = (char)(0xc0u | code >> 6);
	} else {
		if (code < 0x10000) {
			*to++ = (char)(0xe0u | code >> 12);
		} else {
			*to++ = (char)(0xf0u | code >> 18);
			*to++ = (char)(0x80u | (code >> 12 & 0x3fu));
		}
		*to++ = (char)(0x80u | (code >> 6 & 0x3fu));
	}
	*to++ = (char)(0x80u | (code & 0x3fu));
	return to;
}

/* The escape after "\u": half a surrogate pair becomes U+FFFD, as Go's decoder (runc's) has it. */
static bool unicode_escape(struct json *json, char **to)
{
	uint32_t code = hex4(json->at, json->end);
	if (code == NO_CODE)
		return fail(json, "truncated \\u escape");
	json->at += 4;
	if (code >= 0xd800 && code < 0xe000) {
		uint32_t low = NO_CODE;
		if (code < 0xdc00 && json->end - json->at >= 2 && json->at[0] == '\\' &&
			json->at[1] == 'u')
			low = hex4(json->at + 2, json->end);
		if (low >= 0xdc00 && low < 0xe000) {
			code = 0x10000 + (code - 0xd800) * 0x400 + (low - 0xdc00);
			json->at += 6;
		} else {
			code = 0xfffd;
		}
	}
	*to = put_utf8(*to, code);
	return true;
}

static bool escape(struct json *json, char **to)
{
	static const char names[] = "\"\\/bfnrt";
	static const char bytes[] = "\"\\/\b\f\n\r\t";
	if (json->at == json->end)
		return fail(json, "unterminated string");
	char c = *json->at++;
	if (c == 'u')
		return unicode_escape(json, to);
	const char *name = c ? strchr(names, c) : NULL;
	if (!name)
		return fail(json, "unknown escape");
	*(*to)++ = bytes[name - names];
	return true;
}

bool json_string(struct json *json, struct json_text *text)
{
	if (peek(json) != '"')
		return false;
	char *to = ++json->at;
	text->at = to;
	while (json->at < json->end) {
		unsigned char c = (unsigned char)*json->at;
		if (c == '"') {
			json->at++;
			text->length = (size_t)(to - text->at);
			return true;
		}
		if (c < 0x20)
			return fail(json, "a control character in a string");
		json->at++;
		if (c != '\\')
			*to++ = (char)c;
		else if (!escape(json, &to))
			return false;
	}
	return fail(json, "unterminated string");
}

static bool digits(struct json *json)
{
	char *first = json->at;
	while (json->at < json->end && *json->at >= '0' && *json->at <= '9')
		json->at++;
	return json->at > first;
}

static bool take(struct json *json, const char *any_of)
{
	if (json->at == json->end || !*json->at || !strchr(any_of, *json->at))
		return false;
	json->at++;
	return true;
}

/* RFC 8259's number; `*whole` says whether it has neither fraction nor exponent. */
static bool number(struct json *json, bool *whole)
{
	take(json, "-");
	if (!take(json, "0") && !digits(json))
		return fail(json, "not a value");
	*whole = true;
	if (take(json, ".")) {
		*whole = false;
		if (!digits(json))
			return fail(json, "not a number");
	}
	if (take(json, "eE")) {
		*whole = false;
		take(json, "+-");
		if (!digits(json))
			return fail(json, "not a number");
	}
	return true;
}

bool json_integer(struct json *json, long long *value)
{
	char c = peek(json);
	if (c != '-' && (c < '0' || c > '9'))
		return false;
	char *first = json->at;
	bool whole;
	if (!number(json, &whole))
		return false;
	if (!whole || json->at - first - (c == '-') > 16) {
		json->at = first; /* a number, and none of this kind */
		return false;
	}
	long long sum = 0;
	for (char *at = first + (c == '-'); at < json->at; at++)
		sum = sum * 10 + (*at - '0');
	*value = c == '-' ? -sum : sum;
	return true;
}

static bool word(struct json *json, const char *expected)
{
	size_t length = strlen(expected);
	if (peek(json) != *expected)
		return false;
	if ((size_t)(json->end - json->at) < length || memcmp(json->at, expected, length) != 0)
		return fail(json, "not a value");
	json->at += length;
	return true;
}

bool json_boolean(struct json *json, bool *value)
{
	*value = word(json, "true");
	return *value || word(json, "false");
}

bool json_null(struct json *json)
{
	return word(json, "null");
}

void json_skip(struct json *json)
{
	struct json_text text;
	bool unused;
	if (json_enter_object(json)) {
		while (json_next_key(json, &text))
			json_skip(json);
	} else if (json_enter_array(json)) {
		while (json_next_element(json))
			json_skip(json);
	} else if (!json->error && !json_string(json, &text) && !json_boolean(json, &unused) &&
		   !json_null(json) && !json->error) {
		if (json->at == json->end)
			fail(json, "the document is truncated");
		else
			number(json, &unused);
	}
}

bool json_finish(struct json *json)
{
	if (peek(json) != '\0' || json->at < json->end)
		fail(json, "unexpected data after the document");
	return !json->error;
}

bool json_text_is(const struct json_text *text, const char *expected)
{
	return text->length == strlen(expected) && memcmp(text->at, expected, text->length) == 0;
}

bool json_text_copy(const struct json_text *text, char *to, size_t room)
{
	if (text->length >= room || memchr(text->at, '\0', text->length))
		return false;
	memcpy(to, text->at, text->length);
	to[text->length] = '\0';
	return true;
}

/* Bytes of the well-formed UTF-8 sequence at `at` (a C string), 0 for none. Unicode table 3-7. */
static size_t utf8_length(const unsigned char *at)
{
	size_t length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
	if (at[0] < 0xc2 || at[0] > 0xf4)
		return 0;
	if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
		(at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
		return 0;
	for (size_t i = 1; i < length; i++)
		if ((at[i] & 0xc0u) != 0x80u)
			return 0;
	return length;
}

static bool append(char *to, size_t room, size_t *length, const char *bytes, size_t count)
{
	if (room - *length < count)
		return false;
	memcpy(to + *length, bytes, count);
	*length += count;
	return true;
}

bool json_quote(char *to, size_t room, size_t *length, const char *text)
{
	static const char hex[] = "0123456789abcdef";
	const unsigned char *at = (const unsigned char *)text;
	if (!append(to, room, length, "\"", 1))
		return false;
	while (*at) {
		char escaped[] = {'\\', 'u', '0', '0', hex[*at / 16], hex[*at % 16]};
		size_t step = 1;
		bool fits;
		if (*at < 0x20 || *at == 0x7f) {
			fits = append(to, room, length, escaped, sizeof(escaped));
		} else if (*at == '"' || *at == '\\') {
			fits = append(to, room, length, "\\", 1) &&
			       append(to, room, length, (const char *)at, 1);
		} else if (*at < 0x80) {
			fits = append(to, room, length, (const char *)at, 1);
		} else if ((step = utf8_length(at)) > 0) {
			fits = append(to, room, length, (const char *)at, step);
		} else {
			step = 1;
			fits = append(to, room, length, "\\ufffd", 6);
		}
		if (!fits)
			return false;
		at += step;
	}
	return append(to, room, length, "\"", 1);
}
