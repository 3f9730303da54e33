/* SPDX-License-Identifier: Apache-2.0
 *
 * The bundle directory of a container: opened once, everything of it is then reached beneath that
 * descriptor, so that what was looked at, what the daemon edits and what is named are the same.
 */
#ifndef GPUSHARE_RUNTIME_BUNDLE_H
#define GPUSHARE_RUNTIME_BUNDLE_H

#include <stddef.h>

#define BUNDLE_CONFIG "config.json"
#define BUNDLE_CONFIG_MAX ((size_t)4 << 20) /* bytes of config.json that are looked at */

enum bundle_read {
	BUNDLE_READ,
	BUNDLE_ABSENT,	  /* not there or not for us to read: the low-level runtime says why */
	BUNDLE_TOO_LONG,  /* over BUNDLE_CONFIG_MAX */
	BUNDLE_LINK,	  /* a symbolic link, which the daemon would not edit; the text is read */
	BUNDLE_IRREGULAR, /* a pipe, a device: reading it would take it from the runtime */
};

/* A descriptor of the directory, -1 with errno. */
int bundle_open(const char *path);

/* The directory's one absolute name in `to`: 0, or -1 with errno. */
int bundle_path(int bundle, char *to, size_t room);

/* The spec `name` of the bundle, mostly BUNDLE_CONFIG, in `*text` (the caller frees it; BUNDLE_READ
 * and BUNDLE_LINK only). */
enum bundle_read bundle_read_config(int bundle, const char *name, char **text, size_t *length);

/* O_PATH descriptor of the root file system, `path` as in root.path; -1 with errno. */
int bundle_open_root(int bundle, const char *path);

#endif
