/* SPDX-License-Identifier: Apache-2.0
 *
 * `create` of a container that the launcher binds: it runs the low-level runtime as a child, and
 * when that has made the container, tells gpushared its init process. Until `start`, the init waits
 * at the runtime's exec.fifo and runs nothing of the image.
 */
#ifndef GPUSHARE_RUNTIME_BINDING_H
#define GPUSHARE_RUNTIME_BINDING_H

#include "args.h"
#include "client.h"
#include "config.h"

/* `created` is gpushared's answer to the create; `exec` becomes the low-level runtime with the
 * arguments that it is given, and returns only on failure. */
_Noreturn void binding_create(const struct args *args, const struct config *config,
	const struct reply *created, char **argv, int (*exec)(const struct config *, char **));

#endif
