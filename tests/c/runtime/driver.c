/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves the launcher's parsers to the tests: on stdin a length (native 32 bits), a letter and as
 * many bytes; on stdout a line of JSON for each. Built with the address and undefined-behaviour
 * sanitizers, it ends at the first wrong step.
 */
#include "args.h"
#include "json.h"
#include "spec.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 64

static void print_text(const struct json_text *text)
{
	size_t room = text->length * 6 + 2, length = 0;
	char *quoted = malloc(room), *copy = malloc(text->length + 1);

	memcpy(copy, text->at, text->length);
	copy[text->length] = '\0';
	if (!json_quote(quoted, room, &length, copy))
		abort();
	fwrite(quoted, 1, length, stdout);
	free(copy);
	free(quoted);
}

static void print_string(const char *text)
{
	struct json_text whole;
	if (!text) {
		fputs("null", stdout);
		return;
	}
	whole = (struct json_text){.at = (char *)(uintptr_t)text, .length = strlen(text)};
	print_text(&whole);
}

/* 'a': words, each ended by a NUL. */
static void serve_args(char *bytes, size_t length)
{
	char *argv[WORDS_MAX + 1];
	size_t count = 0;
	struct args args;

	for (char *at = bytes; at < bytes + length; at += strlen(at) + 1) {
		if (count == WORDS_MAX)
			abort();
		argv[count++] = at;
	}
	argv[count] = NULL;
	args_parse(&args, argv);
	const struct {
		const char *name, *value;
	} fields[] = {{"verb", args.verb}, {"id", args.id}, {"bundle", args.bundle},
		{"log", args.log}, {"format", args.format}, {"unknown", args.unknown},
		{"config", args.config}};
	printf("{\"creates\":%s,\"checkpoints\":%s", args.creates ? "true" : "false",
		args.checkpoints ? "true" : "false");
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		printf(",\"%s\":", fields[i].name);
		print_string(fields[i].value);
	}
	puts("}");
}

static void print_flag(const char *name, bool value)
{
	printf(",\"%s\":%s", name, value ? "true" : "false");
}

/* 's': a config.json. */
static void serve_spec(char *bytes, size_t length)
{
	static const char *const strengths[] = {"none", "weak", "strong"};
	struct spec spec;

	spec_read(&spec, bytes, length);
	printf("{\"marker\":\"%s\",\"name\":", strengths[spec.marker]);
	print_string(spec.marker_name);
	fputs(",\"duplicate\":", stdout);
	print_string(spec.duplicate);
	fputs(",\"error\":", stdout);
	print_string(spec.error);
	printf(",\"offset\":%zu,\"root\":", spec.error_offset);
	if (spec.root.at)
		print_text(&spec.root);
	else
		print_string(NULL);
	print_flag("privileged", spec.privileged);
	print_flag("placed", spec.placed);
	print_flag("edited", spec.edited);
	print_flag("mentioned", marker_mentioned(bytes, length));
	puts("}");
}

int main(void)
{
	uint32_t length;
	char letter;

	while (fread(&length, sizeof(length), 1, stdin) == 1 && fread(&letter, 1, 1, stdin) == 1) {
		/* No spare byte: a step past the end is a step the sanitizer sees. */
		char *bytes = malloc(length);
		if (fread(bytes, 1, length, stdin) != length)
			abort();
		if (letter == 'a')
			serve_args(bytes, length);
		else if (letter == 's')
			serve_spec(bytes, length);
		else
			abort();
		fflush(stdout);
		free(bytes);
	}
	return 0;
}
