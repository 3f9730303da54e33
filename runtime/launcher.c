/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-runtime: what docker and containerd register as their OCI runtime.
 *
 * It execs the low-level runtime with argv, environment, descriptors and working directory as they
 * came. Before that, on create, run and restore of a container that has to do with a GPU, it asks
 * the daemon, which edits the bundle's config.json or refuses. A container that does not is started
 * without the daemon, whether that lives or not.
 */
#include "args.h"
#include "bundle.h"
#include "cleanup.h"
#include "client.h"
#include "config.h"
#include "log.h"
#include "spec.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_REFUSED = 1 }; /* as runc's own failures */

/* The one line of a container that asks and cannot be served: who asks, why not, what to do. */
static void refuse(const struct spec *spec, const char *why, const char *what_to_do)
{
	log_error("this container asks for a GPU (%s), but %s; %s", spec->marker_name, why,
		what_to_do);
}

/* Whether to go on to the low-level runtime after the daemon's answer. */
static bool judge(const struct spec *spec, const struct config *config, enum client_result result,
	const struct reply *reply)
{
	char why[sizeof(config->socket) + 256];

	if (result == CLIENT_OK)
		return true;
	/* An image's word alone: whatever kept the daemon from looking, it starts without a GPU.
	 * Only a node whose defaults make a quota of that word refuses it. */
	if (spec->marker == MARKER_WEAK &&
		!(result == CLIENT_REFUSED && strcmp(reply->code, "refused") == 0))
		return true;
	if (result == CLIENT_REFUSED) {
		log_error("%s", reply->message);
		return false;
	}
	if (result == CLIENT_FORBIDDEN) {
		refuse(spec, "its engine runs without root, and only root's containers get one",
			"start it with sudo, or without a container: gpushare run");
		return false;
	}
	snprintf(why, sizeof(why), "gpushared %s %s (%.200s)",
		result == CLIENT_BROKEN ? "failed on" : "does not answer on", config->socket,
		reply->message);
	refuse(spec, why, "try systemctl start gpushared, or see gpushare doctor");
	return false;
}

/* Ask the daemon to give `args->id` what its spec says. */
static bool ask(const struct args *args, const struct config *config, const struct spec *spec,
	int bundle, int root)
{
	struct request request;
	struct reply reply;
	char path[PATH_MAX];
	const int fds[] = {bundle, root};

	if (bundle_path(bundle, path, sizeof(path)) < 0) {
		log_error("the path of bundle %s: %s", args->bundle, strerror(errno));
		return false;
	}
	request_begin(&request, "create");
	request_string(&request, "id", args->id);
	request_string(&request, "bundle", path);
	request_string(&request, "verb", args->verb);
	request_string(&request, "marker", spec->marker == MARKER_STRONG ? "strong" : "weak");
	if (!request_end(&request)) {
		log_error("container id and bundle path are longer than the %d bytes of a request",
			CLIENT_REQUEST_MAX);
		return false;
	}
	return judge(spec, config,
		client_call(config->socket, &request, fds, 2,
			(struct patience){CLIENT_START_MS, CLIENT_FINAL_MS}, &reply),
		&reply);
}

/* What keeps a marked container from being judged by its config.json; NULL: nothing. */
static const char *obstacle(const struct args *args, const struct config *config,
	const struct spec *spec, enum bundle_read read)
{
	static char why[sizeof(config->problem) + 64];

	if (spec->duplicate[0])
		snprintf(why, sizeof(why), "the %s is twice in config.json; keep one",
			spec->duplicate);
	else if (read == BUNDLE_LINK)
		return "config.json is a symbolic link; make it a file";
	else if (args->unknown)
		snprintf(why, sizeof(why),
			"the flag %.64s is unknown to gpushare; leave it out or use another "
			"runtime",
			args->unknown);
	else if (config->problem[0])
		snprintf(why, sizeof(why), "%s; run gpushare setup", config->problem);
	else
		return NULL;
	return why;
}

/* Whether the container that `text` (its config.json) describes may go to the low-level runtime. */
static bool admit_spec(const struct args *args, const struct config *config, int bundle,
	enum bundle_read read, char *text, size_t length)
{
	struct spec spec;
	char path[PATH_MAX];

	spec_read(&spec, text, length);
	if (spec.error && (spec.marker == MARKER_STRONG || marker_mentioned(text, length))) {
		log_error("config.json asks for a GPU and is not JSON at byte %zu: %s",
			spec.error_offset, spec.error);
		return false;
	}
	/* Without an id the runtime prints its usage; what is broken is the runtime's to report. */
	if (spec.error || spec.marker == MARKER_NONE || !args->id)
		return true;
	const char *why = obstacle(args, config, &spec, read);
	if (why && spec.marker == MARKER_STRONG)
		log_error("this container asks for a GPU (%s), but %s", spec.marker_name, why);
	if (why)
		return spec.marker == MARKER_WEAK;
	CLEANUP_FD int root = spec.root.at && json_text_copy(&spec.root, path, sizeof(path))
				      ? bundle_open_root(bundle, path)
				      : -1;
	if (root >= 0)
		return ask(args, config, &spec, bundle, root);
	if (spec.marker == MARKER_STRONG)
		refuse(&spec, "its root.path is no directory that can be opened",
			"mend config.json");
	return spec.marker == MARKER_WEAK;
}

/* Whether the container may go to the low-level runtime. */
static bool admit(const struct args *args, const struct config *config)
{
	CLEANUP_FREE char *text = NULL;
	size_t length = 0;
	CLEANUP_FD int bundle = bundle_open(args->bundle);
	enum bundle_read read = bundle < 0
					? BUNDLE_ABSENT
					: bundle_read_config(bundle, args->config, &text, &length);

	switch (read) {
	case BUNDLE_ABSENT:
		return true;
	case BUNDLE_TOO_LONG:
		log_error("config.json is over 4 MiB, so gpushare cannot tell whether it asks for "
			  "a GPU; shorten its annotations and environment, or use another runtime");
		return false;
	case BUNDLE_IRREGULAR:
		log_error("config.json is not a regular file, or grows; write it anew");
		return false;
	default:
		return admit_spec(args, config, bundle, read, text, length);
	}
}

static bool is_this_program(const char *path)
{
	struct stat self, other;
	return stat("/proc/self/exe", &self) == 0 && stat(path, &other) == 0 &&
	       self.st_dev == other.st_dev && self.st_ino == other.st_ino;
}

/* Returns only when it failed. */
static int exec_runtime(const struct config *config, char *const *argv)
{
	extern char **environ;
	const char *file = config->file[0] ? config->file : "/etc/gpushare/runtime.conf";

	if (!config->runtime[0]) {
		log_error("no low-level runtime is installed; install runc or crun and run "
			  "gpushare setup");
	} else if (is_this_program(config->runtime)) {
		log_error("%s names gpushare-runtime itself as the low-level runtime; write "
			  "e.g. runtime = /usr/bin/runc",
			file);
	} else {
		/* The caller's words and environment are what is to be handed on. */
		execve(config->runtime, argv, environ); // NOLINT(*taint*)
		log_error("%s cannot be run: %s; set \"runtime =\" in %s", config->runtime,
			strerror(errno), file);
	}
	return EXIT_REFUSED;
}

int main(int argc, char **argv)
{
	struct args args;
	struct config config;

	(void)argc;
	args_parse(&args, argv);
	log_to(args.log, args.format);
	config_load(&config);
	if (args.creates && !admit(&args, &config))
		return EXIT_REFUSED;
	return exec_runtime(&config, argv);
}
