/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-hook createRuntime [--socket PATH --key KEY], run by the low-level runtime as that OCI
 * hook: it tells the daemon the container's pid, and a container that the daemon does not know must
 * not start.
 *
 * The daemon writes it into a spec, with socket and key. Without --key it was registered by a
 * hooks.d file (podman, CRI-O), which can match an annotation and not edit a spec: then it sees to
 * it that a container that asks for a GPU share goes through gpushare-runtime at all.
 *
 * It runs as root beside a tenant: it leaves the bundle's directory at once, never forks, writes
 * nothing to stdout, and everything it reads is bounded.
 */
#include "args.h"
#include "bundle.h"
#include "cleanup.h"
#include "client.h"
#include "json.h"
#include "log.h"
#include "spec.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STATE_MAX ((size_t)1 << 20) /* bytes of state JSON; the annotations are in it */
#define ID_MAX 1024
#define CALLER_MAX ((size_t)64 << 10) /* bytes of the command line that a hook is run from */
#define CALLER_WORDS 256

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct hook {
	const char *socket;
	const char *key;
};

/* OCI runtime-spec's state, as much of it as matters. */
struct state {
	char id[ID_MAX];
	char bundle[PATH_MAX];
	long long pid; /* 0: absent, or ended */
};

static bool hook_parse(struct hook *hook, char *const *argv)
{
	*hook = (struct hook){0};
	if (!argv[0] || !argv[1] || strcmp(argv[1], "createRuntime") != 0)
		return false;
	for (argv += 2; *argv; argv += 2) {
		const char **to = strcmp(*argv, "--socket") == 0 ? &hook->socket
				  : strcmp(*argv, "--key") == 0	 ? &hook->key
								 : NULL;
		if (!to || !argv[1])
			return false;
		*to = argv[1];
	}
	return !hook->key == !hook->socket;
}

/* Everything on stdin; 0 and a message when there is none, or too much. */
static size_t stdin_read(char *to, size_t room)
{
	size_t have = 0;
	while (have < room) {
		ssize_t got = read(STDIN_FILENO, to + have, room - have);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			log_error("cannot read the container's state from stdin: %s",
				strerror(errno));
		if (got < 0)
			return 0;
		if (got == 0 && have == 0)
			log_error("the container's state on stdin is empty");
		if (got == 0)
			return have;
		have += (size_t)got;
	}
	log_error("the container's state on stdin is larger than %zu bytes", room);
	return 0;
}

static void state_walk(struct state *state, struct json *json)
{
	struct json_text key, text;

	if (!json_enter_object(json)) {
		json_skip(json);
		return;
	}
	while (json_next_key(json, &key)) {
		if (json_text_is(&key, "pid") && json_integer(json, &state->pid))
			continue;
		bool id = json_text_is(&key, "id"), bundle = json_text_is(&key, "bundle");
		if (!(id || bundle) || !json_string(json, &text))
			json_skip(json);
		else if (id && !json_text_copy(&text, state->id, sizeof(state->id)))
			state->id[0] = '\0';
		else if (bundle && !json_text_copy(&text, state->bundle, sizeof(state->bundle)))
			state->bundle[0] = '\0';
	}
}

static bool state_read(struct state *state)
{
	static char text[STATE_MAX];
	struct json json;
	size_t length = stdin_read(text, sizeof(text));

	*state = (struct state){0};
	if (length == 0)
		return false;
	json_begin(&json, text, length);
	state_walk(state, &json);
	if (!json_finish(&json))
		log_error("the container's state on stdin is not valid JSON at byte %zu: %s",
			json_offset(&json), json.error);
	else if (!state->id[0])
		log_error("the container's state on stdin has no ID");
	return !json.error && state->id[0];
}

/* Tell the daemon; false and a message when it does not agree. */
static bool bind_container(const struct hook *hook, const struct state *state)
{
	struct request request;
	struct reply reply;

	if (state->pid <= 0) {
		log_error("the container's state on stdin has no PID");
		return false;
	}
	request_begin(&request, "bind");
	request_string(&request, "key", hook->key);
	request_string(&request, "id", state->id);
	request_integer(&request, "pid", state->pid);
	if (!request_end(&request)) {
		log_error("the container's ID is too long for a request");
		return false;
	}
	switch (client_call(hook->socket, &request, NULL, 0,
		(struct patience){CLIENT_START_MS, CLIENT_FINAL_MS}, &reply)) {
	case CLIENT_OK:
		return true;
	case CLIENT_REFUSED:
	case CLIENT_FORBIDDEN:
		log_error("%s", reply.message);
		return false;
	default:
		log_error("gpushared on %s: %s. %s.", hook->socket, reply.message,
			client_start_advice());
		return false;
	}
}

/* /proc/PID/cmdline of the process that runs this hook, its words in `argv`; false where it has
 * too many, or cannot be read. */
static bool caller_read(char *text, size_t room, char **argv, size_t words)
{
	char path[64];
	size_t have = 0, count = 0;
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)getppid());
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while ((got = read(fd, text + have, room - have)) > 0)
		have += (size_t)got;
	if (got < 0 || have == 0 || have == room || text[have - 1])
		return false;
	for (char *word = text; word < text + have && count < words; word += strlen(word) + 1)
		argv[count++] = word;
	argv[count] = NULL;
	return count < words;
}

/* Under a user namespace crun says "/" of the bundle (1.8 and 1.21): where its command line does
 * not. "" when neither tells. */
static const char *bundle_of(const struct state *state)
{
	static char text[CALLER_MAX];
	static char *argv[CALLER_WORDS + 1];
	struct args args;

	if (strcmp(state->bundle, "/") != 0)
		return state->bundle;
	if (!caller_read(text, sizeof(text), argv, CALLER_WORDS))
		return "";
	args_parse(&args, argv);
	return args.creates && *args.bundle == '/' ? args.bundle : "";
}

/* For hooks.d: whether the daemon has had this container's spec, or need not have it: the sandbox
 * of a pod bears the pod's annotations too. */
static bool went_through_launcher(const struct state *state)
{
	CLEANUP_FREE char *text = NULL;
	size_t length = 0;
	CLEANUP_FD int bundle = bundle_open(bundle_of(state));
	struct spec spec;

	if (bundle >= 0 &&
		bundle_read_config(bundle, BUNDLE_CONFIG, &text, &length) == BUNDLE_READ) {
		spec_read(&spec, text, length);
		if (!spec.error && (spec.edited || spec.marker != MARKER_STRONG))
			return true;
	}
	log_error("this container has gpushare.io/ annotations but was not started by "
		  "gpushare-runtime. "
		  "Start it with --runtime gpushare, or remove the annotations.");
	return false;
}

int main(int argc, char **argv)
{
	struct hook hook;
	struct state state;

	(void)argc;
	if (!hook_parse(&hook, argv)) {
		log_error("usage: gpushare-hook createRuntime [--socket PATH --key KEY] < STATE");
		return EXIT_USAGE;
	}
	if (chdir("/") < 0)
		log_error("/: %s", strerror(errno));
	if (!state_read(&state))
		return EXIT_FAILED;
	bool done = hook.key ? bind_container(&hook, &state) : went_through_launcher(&state);
	return done ? 0 : EXIT_FAILED;
}
