/* SPDX-License-Identifier: Apache-2.0
 *
 * gpushare-runtime: what docker and containerd register as their OCI runtime.
 *
 * It execs the low-level runtime with argv, environment, descriptors and working directory as they
 * came. Before that, on create, run and restore of a container that has to do with a GPU, it asks
 * the daemon, which edits the bundle's config.json or refuses. Where the daemon says so, it runs a
 * `create` as a child instead, and binds the container before it returns (binding.h). A container
 * that has nothing to do with a GPU is started without the daemon, whether that lives or not. The
 * daemon also refuses the checkpoint of a container with a GPU.
 */
#include "args.h"
#include "binding.h"
#include "bundle.h"
#include "cleanup.h"
#include "client.h"
#include "config.h"
#include "log.h"
#include "spec.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_REFUSED = 1 }; /* as runc's own failures */

/* Refuse in one line: what requests the GPU, why it is refused, what to do. */
static void refuse(const struct spec *spec, const char *why, const char *what_to_do)
{
	log_error("this container requests a GPU (%s), but %s. %s.", spec->marker_name, why,
		what_to_do);
}

/* Whether the daemon denied what was requested, and did not fail: it is not granted, or names a
 * card that does not exist. */
static bool is_denial(enum client_result result, const struct reply *reply)
{
	return result == CLIENT_REFUSED &&
	       (strcmp(reply->code, "refused") == 0 || strcmp(reply->code, "not-found") == 0);
}

/* Whether to go on to the low-level runtime after the daemon's answer. */
static bool judge(const struct spec *spec, const struct config *config, enum client_result result,
	const struct reply *reply)
{
	char why[sizeof(config->socket) + 256];

	if (result == CLIENT_OK)
		return true;
	/* Only an image's variable: whatever kept the daemon from answering, the container starts
	 * without a GPU. Only a node whose defaults make a quota of it refuses. */
	if (spec->marker == MARKER_WEAK && !is_denial(result, reply))
		return true;
	if (result == CLIENT_REFUSED) {
		log_error("%s", reply->message);
		return false;
	}
	if (result == CLIENT_FORBIDDEN) {
		refuse(spec, "GPUs are not available to rootless engines",
			"Start it with sudo, or without a container: gpushare run");
		return false;
	}
	snprintf(why, sizeof(why), "gpushared %s %s (%.200s)",
		result == CLIENT_BROKEN ? "failed on" : "does not answer on", config->socket,
		reply->message);
	refuse(spec, why, client_start_advice());
	return false;
}

/* Ask the daemon to give `args->id` what its spec says; `reply` is its answer. */
static bool ask(const struct args *args, const struct config *config, const struct spec *spec,
	int bundle, int root, struct reply *reply)
{
	struct request request;
	char path[PATH_MAX];
	const int fds[] = {bundle, root};

	if (bundle_path(bundle, path, sizeof(path)) < 0) {
		log_error(
			"cannot resolve the path of bundle %s: %s", args->bundle, strerror(errno));
		return false;
	}
	request_begin(&request, "create");
	request_string(&request, "id", args->id);
	request_string(&request, "bundle", path);
	request_string(&request, "verb", args->verb);
	request_string(&request, "marker", spec->marker == MARKER_STRONG ? "strong" : "weak");
	if (strcmp(args->verb, "create") == 0)
		request_string(&request, "bind", "launcher");
	request.pins_mounts = true;
	if (!request_end(&request)) {
		log_error("container ID and bundle path exceed the %d bytes of a request",
			CLIENT_REQUEST_MAX);
		return false;
	}
	return judge(spec, config,
		client_call(config->socket, &request, fds, 2,
			(struct patience){CLIENT_START_MS, CLIENT_FINAL_MS}, reply),
		reply);
}

/* What keeps a marked container from being judged by its config.json; NULL: nothing. */
static const char *obstacle(const struct args *args, const struct config *config,
	const struct spec *spec, enum bundle_read read)
{
	static char why[sizeof(config->problem) + 64];

	if (spec->duplicate[0])
		snprintf(why, sizeof(why), "config.json contains the %s twice. Keep one",
			spec->duplicate);
	else if (read == BUNDLE_LINK)
		return "config.json is a symbolic link. Replace it with a regular file";
	else if (args->unknown)
		snprintf(why, sizeof(why),
			"gpushare does not know the flag %.64s. Remove it or use another "
			"runtime",
			args->unknown);
	else if (config->problem[0])
		snprintf(why, sizeof(why), "%s. Run gpushare setup", config->problem);
	else
		return NULL;
	return why;
}

/* Whether the container that `text` (its config.json) describes may go to the low-level runtime. */
static bool admit_spec(const struct args *args, const struct config *config, int bundle,
	enum bundle_read read, char *text, size_t length, struct reply *reply)
{
	struct spec spec;
	char path[PATH_MAX];

	spec_read(&spec, text, length);
	if (spec.error && (spec.marker == MARKER_STRONG || marker_mentioned(text, length))) {
		log_error("config.json requests a GPU and is not valid JSON at byte %zu: %s",
			spec.error_offset, spec.error);
		return false;
	}
	/* Without an id the runtime prints its usage; what is broken is the runtime's to report. */
	if (spec.error || spec.marker == MARKER_NONE || !args->id)
		return true;
	const char *why = obstacle(args, config, &spec, read);
	if (why && spec.marker == MARKER_STRONG)
		log_error("this container requests a GPU (%s), but %s.", spec.marker_name, why);
	if (why)
		return spec.marker == MARKER_WEAK;
	CLEANUP_FD int root = spec.root.at && json_text_copy(&spec.root, path, sizeof(path))
				      ? bundle_open_root(bundle, path)
				      : -1;
	if (root >= 0)
		return ask(args, config, &spec, bundle, root, reply);
	if (spec.marker == MARKER_STRONG)
		refuse(&spec, "its root.path is not a directory that can be opened",
			"Fix config.json");
	return spec.marker == MARKER_WEAK;
}

/* Whether the container may go to the low-level runtime; `reply`: what the daemon answered, if it
 * was asked. */
static bool admit(const struct args *args, const struct config *config, struct reply *reply)
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
		log_error(
			"config.json is larger than 4 MiB, so gpushare cannot tell whether it "
			"requests "
			"a GPU. Shorten its annotations and environment, or use another runtime.");
		return false;
	case BUNDLE_IRREGULAR:
		log_error("config.json is not a regular file, or is growing. Write it again.");
		return false;
	default:
		return admit_spec(args, config, bundle, read, text, length, reply);
	}
}

/* Whether the low-level runtime may dump the container. Its image would lack the driver's state,
 * and without --leave-running the container would end for it. Without a daemon's answer it may: no
 * container with a GPU is restored. */
static bool admit_checkpoint(const struct args *args, const struct config *config)
{
	struct request request;
	struct reply reply;

	request_begin(&request, "checkpoint");
	request_string(&request, "id", args->id);
	if (!request_end(&request) || config->problem[0])
		return true;
	if (client_call(config->socket, &request, NULL, 0, (struct patience){0, CLIENT_FINAL_MS},
		    &reply) != CLIENT_REFUSED ||
		strcmp(reply.code, "refused") != 0)
		return true;
	log_error("%s", reply.message);
	return false;
}

static bool is_this_program(const char *path)
{
	struct stat self, other;
	return stat("/proc/self/exe", &self) == 0 && stat(path, &other) == 0 &&
	       self.st_dev == other.st_dev && self.st_ino == other.st_ino;
}

/* Returns only when it failed. */
static int exec_runtime(const struct config *config, char **argv)
{
	extern char **environ;
	const char *file = config->file[0] ? config->file : "/etc/gpushare/runtime.conf";

	if (!config->runtime[0]) {
		log_error("no low-level runtime is installed. Install runc or crun, then run "
			  "gpushare setup.");
	} else if (is_this_program(config->runtime)) {
		log_error("%s names gpushare-runtime itself as the low-level runtime. Use, for "
			  "example, "
			  "runtime = /usr/bin/runc.",
			file);
	} else {
		/* A usage text names the program that prints it; crun also selects its handler by
		 * this name. Everything else is the caller's. */
		if (argv[0])
			argv[0] = (char *)(uintptr_t)config->runtime;
		execve(config->runtime, argv, environ); // NOLINT(*taint*)
		log_error("cannot run %s: %s. Set \"runtime =\" in %s.", config->runtime,
			strerror(errno), file);
	}
	return EXIT_REFUSED;
}

int main(int argc, char **argv)
{
	struct args args;
	struct config config;
	static struct reply reply;

	(void)argc;
	args_parse(&args, argv);
	log_to(args.log, args.format);
	config_load(&config);
	if (args.creates && !admit(&args, &config, &reply))
		return EXIT_REFUSED;
	if (reply.binds && strcmp(args.verb, "create") == 0)
		binding_create(&args, &config, &reply, argv, exec_runtime);
	if (args.checkpoints && args.id && !admit_checkpoint(&args, &config))
		return EXIT_REFUSED;
	return exec_runtime(&config, argv);
}
