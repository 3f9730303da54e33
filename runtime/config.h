/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher's own configuration, a flat file that `gpushare setup` writes:
 *
 *	# which program does the work, and where the daemon listens
 *	runtime = /usr/bin/runc
 *	socket = /run/gpushare/control.sock
 *
 * gpushare-runtime.conf beside the launcher's executable, else /etc/gpushare/runtime.conf. Never a
 * path from the environment: that is the caller's, and an engine's may be a container's.
 */
#ifndef GPUSHARE_RUNTIME_CONFIG_H
#define GPUSHARE_RUNTIME_CONFIG_H

#include <limits.h>

struct config {
	char file[PATH_MAX];	/* the one that was read; "": there is none */
	char runtime[PATH_MAX]; /* absolute; "": no low-level runtime was found */
	char socket[PATH_MAX];
	char problem[PATH_MAX + 256]; /* why nothing may be enforced by it; "": all is well */
};

/* Always leaves something to run where there is anything: a bad file must not stop `delete`. */
void config_load(struct config *config);

#endif
