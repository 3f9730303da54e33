/* SPDX-License-Identifier: Apache-2.0 */
#include "spec.h"

#include <stdio.h>
#include <string.h>

/* Marking annotations whose repetition is noticed; the daemon's parser knows no such bound. */
#define SEEN_MAX 64

/* Into the next value; one of another kind is skipped, for it holds nothing that we know. */
static bool inside_object(struct json *json)
{
	if (json_enter_object(json))
		return true;
	json_skip(json);
	return false;
}

static bool inside_array(struct json *json)
{
	if (json_enter_array(json))
		return true;
	json_skip(json);
	return false;
}

static void name_text(char *to, const char *what, const struct json_text *text)
{
	char name[SPEC_NAME_MAX - 24];
	size_t length = text->length < sizeof(name) ? text->length : sizeof(name) - 1;
	memcpy(name, text->at, length);
	name[length] = '\0';
	snprintf(to, SPEC_NAME_MAX, "%s \"%s\"", what, name);
}

static void note_duplicate(struct spec *spec, const struct json_text *key)
{
	if (!*spec->duplicate)
		name_text(spec->duplicate, "key", key);
}

static enum marker note_marker(struct spec *spec, enum marker_source source, struct json_text *text)
{
	enum marker marker = marker_of(source, text);
	if (marker != MARKER_NONE && (source == MARKER_DEVICE || source == MARKER_HOOK))
		spec->placed = true;
	if (marker > spec->marker) {
		spec->marker = marker;
		name_text(spec->marker_name, marker_source_name(source), text);
	}
	return marker;
}

/* One of `names` (ends with NULL), by its place in it; -1 for another key. Which were there already
 * is kept in `*seen`. */
static int known_key(
	struct spec *spec, const struct json_text *key, const char *const *names, unsigned *seen)
{
	for (int i = 0; names[i]; i++) {
		if (!json_text_is(key, names[i]))
			continue;
		if (*seen & (1u << (unsigned)i))
			note_duplicate(spec, key);
		*seen |= 1u << (unsigned)i;
		return i;
	}
	return -1;
}

/* containerd and CRI-O say of a pod's pause container that it is one. Pod annotations are on it
 * too, and ask for the containers beside it. */
static bool is_sandbox_key(const struct json_text *key)
{
	return json_text_is(key, "io.kubernetes.cri.container-type") ||
	       json_text_is(key, "io.kubernetes.cri-o.ContainerType");
}

static void read_annotations(struct spec *spec, struct json *json)
{
	struct json_text seen[SEEN_MAX], key, value;
	size_t count = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		bool sandbox_key = is_sandbox_key(&key);
		if (note_marker(spec, MARKER_ANNOTATION, &key) != MARKER_NONE || sandbox_key) {
			for (size_t i = 0; i < count; i++)
				if (seen[i].length == key.length &&
					memcmp(seen[i].at, key.at, key.length) == 0)
					note_duplicate(spec, &key);
			if (count < SEEN_MAX)
				seen[count++] = key;
		}
		if (!json_string(json, &value))
			json_skip(json);
		else if (sandbox_key)
			spec->sandbox = json_text_is(&value, "sandbox");
	}
}

static void read_env(struct spec *spec, struct json *json)
{
	struct json_text variable;

	if (!inside_array(json))
		return;
	while (json_next_element(json)) {
		if (!json_string(json, &variable)) {
			json_skip(json);
			continue;
		}
		char *equals = memchr(variable.at, '=', variable.length);
		if (equals)
			variable.length = (size_t)(equals - variable.at);
		note_marker(spec, MARKER_ENV, &variable);
	}
}

static void read_process(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"env", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		if (known_key(spec, &key, names, &seen) == 0)
			read_env(spec, json);
		else
			json_skip(json);
	}
}

/* An array of objects of which only "path" matters: devices, and the hooks of a stage. */
static void read_paths(struct spec *spec, struct json *json, enum marker_source source)
{
	static const char *const names[] = {"path", NULL};
	struct json_text key, path;

	if (!inside_array(json))
		return;
	while (json_next_element(json)) {
		unsigned seen = 0;
		if (!inside_object(json))
			continue;
		while (json_next_key(json, &key)) {
			if (known_key(spec, &key, names, &seen) == 0 && json_string(json, &path))
				note_marker(spec, source, &path);
			else
				json_skip(json);
		}
	}
}

static void read_linux(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"devices", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		if (known_key(spec, &key, names, &seen) == 0)
			read_paths(spec, json, MARKER_DEVICE);
		else
			json_skip(json);
	}
}

static void read_hooks(struct spec *spec, struct json *json)
{
	static const char *const stages[] = {"prestart", "createRuntime", "createContainer",
		"startContainer", "poststart", "poststop", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		if (known_key(spec, &key, stages, &seen) >= 0)
			read_paths(spec, json, MARKER_HOOK);
		else
			json_skip(json);
	}
}

static void read_root(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"path", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		if (known_key(spec, &key, names, &seen) != 0 || !json_string(json, &spec->root))
			json_skip(json);
	}
}

static void read_document(struct spec *spec, struct json *json)
{
	static void (*const readers[])(struct spec *, struct json *) = {
		read_annotations, read_process, read_linux, read_hooks, read_root};
	static const char *const names[] = {
		"annotations", "process", "linux", "hooks", "root", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		int known = known_key(spec, &key, names, &seen);
		if (known >= 0)
			readers[known](spec, json);
		else
			json_skip(json);
	}
}

void spec_read(struct spec *spec, char *text, size_t length)
{
	struct json json;

	*spec = (struct spec){0};
	json_begin(&json, text, length);
	read_document(spec, &json);
	if (!json_finish(&json)) {
		spec->error = json.error;
		spec->error_offset = json_offset(&json);
	}
	/* Whoever may annotate could call any container a sandbox: a GPU that is there says it is
	 * none. */
	if (spec->sandbox && !spec->placed)
		spec->marker = MARKER_NONE;
}
