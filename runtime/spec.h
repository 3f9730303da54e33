/* SPDX-License-Identifier: Apache-2.0
 *
 * What the launcher reads of a config.json: what requests a GPU in it, and where its root
 * file system is. One pass; everything else is skipped. The daemon reads and judges the whole of
 * it.
 */
#ifndef GPUSHARE_RUNTIME_SPEC_H
#define GPUSHARE_RUNTIME_SPEC_H

#include "marker.h"

#define SPEC_NAME_MAX 128

struct spec {
	enum marker marker;		 /* the strongest found; MARKER_NONE for a pod's sandbox */
	char marker_name[SPEC_NAME_MAX]; /* for messages: annotation "gpushare.io/memory" */
	char duplicate[SPEC_NAME_MAX];	 /* a duplicate key; "": none */
	struct json_text root;		 /* root.path, pointing into the text; at NULL: absent */
	char node_name[SPEC_NAME_MAX]; /* for messages: the first node of NVIDIA's, or rule for one;
					  "": none */
	bool privileged;	       /* the cgroup lets it at every device */
	bool sandbox;		       /* annotated as the pause container of a pod */
	bool placed;		       /* a GPU's node or hook was put in for this container */
	bool edited;		       /* the daemon's record is there: it has had this spec */
	const char *error;	       /* why it is not JSON; NULL: it is */
	size_t error_offset;
};

/* Reads `text` in place (strings are decoded where they lie). */
void spec_read(struct spec *spec, char *text, size_t length);

#endif
