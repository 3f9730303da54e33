/* SPDX-License-Identifier: Apache-2.0 */
#include "spec.h"

#include <stdio.h>
#include <string.h>

/* Marking annotations whose repetition is noticed; the daemon's parser knows no such bound. */
#define SEEN_MAX 64

#define NVIDIA_MAJOR 195 /* of nvidia0.., nvidiactl and nvidia-modeset (Linux, devices.txt) */

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
	if (marker != MARKER_NONE && (source == MARKER_HOOK || source == MARKER_HOOK_ARGUMENT))
		spec->placed = true;
	if (marker > spec->marker) {
		spec->marker = marker;
		name_text(spec->marker_name, marker_source_name(source), text);
	}
	return marker;
}

/* A node of NVIDIA's; what it means is seen when the whole spec is read. */
static void note_node(struct spec *spec, enum marker_source source, const struct json_text *path)
{
	if (!*spec->node_name)
		name_text(spec->node_name, marker_source_name(source), path);
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

static void read_device(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"path", "major", NULL};
	struct json_text key, path = {.at = "", .length = 0};
	long long major;
	bool numbered = false;
	unsigned seen = 0;

	while (json_next_key(json, &key)) {
		int known = known_key(spec, &key, names, &seen);
		if (known == 1 && json_integer(json, &major))
			numbered = numbered || major == NVIDIA_MAJOR;
		else if (known != 0 || !json_string(json, &path))
			json_skip(json);
		else if (marker_of(MARKER_DEVICE, &path) != MARKER_NONE)
			note_node(spec, MARKER_DEVICE, &path);
	}
	if (numbered)
		note_node(spec, MARKER_DEVICE, &path);
}

static void read_mount(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"source", "destination", NULL};
	struct json_text key, path;
	unsigned seen = 0;

	while (json_next_key(json, &key)) {
		int known = known_key(spec, &key, names, &seen);
		if (known < 0 || !json_string(json, &path))
			json_skip(json);
		else if (known == 1)
			note_marker(spec, MARKER_MOUNTED, &path);
		else if (marker_of(MARKER_MOUNT, &path) != MARKER_NONE)
			note_node(spec, MARKER_MOUNT, &path);
	}
}

/* `containerd oci-hook -- nvidia-container-cli configure`: another's program starts NVIDIA's. */
static void read_hook_arguments(struct spec *spec, struct json *json)
{
	struct json_text argument;

	if (!inside_array(json))
		return;
	while (json_next_element(json)) {
		if (json_string(json, &argument))
			note_marker(spec, MARKER_HOOK_ARGUMENT, &argument);
		else
			json_skip(json);
	}
}

static void read_hook(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"path", "args", NULL};
	struct json_text key, path;
	unsigned seen = 0;

	while (json_next_key(json, &key)) {
		int known = known_key(spec, &key, names, &seen);
		if (known == 0 && json_string(json, &path))
			note_marker(spec, MARKER_HOOK, &path);
		else if (known == 1)
			read_hook_arguments(spec, json);
		else
			json_skip(json);
	}
}

/* A rule of the cgroup: with one for cards, a container makes the node itself. The last that is for
 * every device says whether the container is privileged: gpushare/oci/spec.py, Spec.is_privileged.
 */
static void read_rule(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"allow", "type", "major", NULL};
	struct json_text key, type;
	long long major = -1;
	bool every_type = true, every_major = true, allow = false;
	unsigned seen = 0;

	while (json_next_key(json, &key)) {
		int known = known_key(spec, &key, names, &seen);
		bool taken = false;
		if (known == 0)
			taken = json_boolean(json, &allow);
		else if (known == 1 && (taken = json_string(json, &type)))
			every_type = type.length == 0 || json_text_is(&type, "a");
		else if (known == 1)
			every_type = false;
		else if (known == 2 && (taken = json_integer(json, &major)))
			every_major = major == -1;
		else if (known == 2)
			taken = every_major = json_null(json);
		if (!taken)
			json_skip(json);
	}
	if (every_type && every_major)
		spec->privileged = allow;
	if (allow && major == NVIDIA_MAJOR && !*spec->node_name)
		snprintf(spec->node_name, sizeof(spec->node_name), "device rule for major %d",
			NVIDIA_MAJOR);
}

static void read_objects(
	struct spec *spec, struct json *json, void (*read)(struct spec *, struct json *))
{
	if (!inside_array(json))
		return;
	while (json_next_element(json))
		if (inside_object(json))
			read(spec, json);
}

static void read_mounts(struct spec *spec, struct json *json)
{
	read_objects(spec, json, read_mount);
}

static void read_resources(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"devices", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		if (known_key(spec, &key, names, &seen) == 0)
			read_objects(spec, json, read_rule);
		else
			json_skip(json);
	}
}

static void read_linux(struct spec *spec, struct json *json)
{
	static const char *const names[] = {"devices", "resources", NULL};
	struct json_text key;
	unsigned seen = 0;

	if (!inside_object(json))
		return;
	while (json_next_key(json, &key)) {
		int known = known_key(spec, &key, names, &seen);
		if (known == 0)
			read_objects(spec, json, read_device);
		else if (known == 1)
			read_resources(spec, json);
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
			read_objects(spec, json, read_hook);
		else
			json_skip(json);
	}
}

/* gpushare/oci/edits.py writes it. No annotation and no image can. */
static void read_record(struct spec *spec, struct json *json)
{
	spec->edited = true;
	json_skip(json);
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
	static void (*const readers[])(struct spec *, struct json *) = {read_annotations,
		read_process, read_linux, read_mounts, read_hooks, read_root, read_record};
	static const char *const names[] = {
		"annotations", "process", "linux", "mounts", "hooks", "root", "x-gpushare", NULL};
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

/* What only the whole spec tells: rules and annotations may stand after the nodes. */
static void settle(struct spec *spec)
{
	bool given = *spec->node_name && !spec->privileged;

	spec->placed = spec->placed || given;
	if (given && spec->marker < MARKER_STRONG) {
		spec->marker = MARKER_STRONG;
		memcpy(spec->marker_name, spec->node_name, sizeof(spec->marker_name));
	}
	/* Every node of the host is a privileged container's: they say nothing of what it wants.
	 * The daemon looks, and is not waited for: it may be such a container itself. */
	if (*spec->node_name && spec->marker == MARKER_NONE)
		spec->marker = MARKER_WEAK;
	/* Whoever may annotate could call any container a sandbox: a GPU that is there says it is
	 * none. */
	if (spec->sandbox && !spec->placed)
		spec->marker = MARKER_NONE;
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
	settle(spec);
}
