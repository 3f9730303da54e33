/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSHARE_HOOKS_INJECTED_H
#define GPUSHARE_HOOKS_INJECTED_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the config.json in `text` (read in place) has a createRuntime or prestart hook of ours
 * with a --key: the mark of a spec that the daemon has edited. */
bool hook_injected(char *text, size_t length);

#endif
