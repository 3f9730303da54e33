/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: calls on a stream become nodes of a graph. capture.c begins, forks, joins and
 * ends captures; captured.c makes the nodes.
 */
#ifndef GPUSHARE_SIMULATOR_CAPTURE_H
#define GPUSHARE_SIMULATOR_CAPTURE_H

#include "graph.h"

struct capture {
	unsigned long long id;
	CUgraph graph;
	bool own_graph; /* made for it, not the program's */
	size_t nodes_before;
	CUstreamCaptureMode mode;
	const void *thread;
	CUstream origin;
	bool invalidated;
	struct participant *participants;
	struct capture *next;
};

/* A stream of a capture, and the nodes that the next one on it depends on. */
struct participant {
	struct capture *capture;
	CUstream stream;
	CUgraphNode *nodes;
	size_t count;
	struct participant *next;
};

/* What an event was recorded after, in a capture. */
struct captured {
	unsigned long long id;
	size_t count;
	CUgraphNode nodes[];
};

/* The rest for a stream with a participant. */

/* Why the stream's capture takes no more nodes; CUDA_SUCCESS where it does. */
CUresult capture_ready(CUstream stream);
/* Go on after these, and with `keep` after what it went on from. */
CUresult capture_set_nodes(CUstream stream, const CUgraphNode *nodes, size_t count, bool keep);
/* The stream goes on after `node`, which was added after its nodes. */
CUresult capture_advance(CUstream stream, CUgraphNode node);

#endif
