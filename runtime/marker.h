/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether something in a spec has to do with a GPU; markers.inc is the table.
 */
#ifndef GPUSHARE_RUNTIME_MARKER_H
#define GPUSHARE_RUNTIME_MARKER_H

#include "json.h"

#include <stdbool.h>

enum marker {
	MARKER_NONE,
	MARKER_WEAK,
	MARKER_STRONG,
};

enum marker_source {
	MARKER_ANNOTATION,
	MARKER_ENV,
	MARKER_DEVICE,
	MARKER_MOUNT,
	MARKER_MOUNTED,
	MARKER_HOOK,
	MARKER_HOOK_ARGUMENT,
};

/* How strong `text`, of this source, is. */
enum marker marker_of(enum marker_source source, const struct json_text *text);

/* For messages: "annotation", "environment variable", ... */
const char *marker_source_name(enum marker_source source);

/* Whether the bytes hold a strong marker's text anywhere: for what is not JSON, where nothing
 * better can be known. */
bool marker_mentioned(const char *bytes, size_t length);

#endif
