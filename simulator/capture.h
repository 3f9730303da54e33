/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture: calls on a stream become nodes of a graph. capture.c begins, forks, joins and
 * ends captures; captured.c creates the nodes.
 */
#ifndef GPUSHARE_SIMULATOR_CAPTURE_H
#define GPUSHARE_SIMULATOR_CAPTURE_H

#include "graph.h"

struct capture {
	unsigned long long id;
	CUgraph graph;
	bool own_graph; /* created for it, not by the program */
	size_t nodes_before;
	CUstreamCaptureMode mode;
	const void *thread;
	CUstream origin;
	bool invalidated;
	struct participant *participants;
	struct capture *next;
};

/* A stream of a capture, and the nodes that its next node depends on. */
struct participant {
	struct capture *capture;
	CUstream stream;
	CUgraphNode *nodes;
	size_t count;
	struct participant *next;
};

/* The nodes that an event depends on, in a capture. */
struct captured {
	unsigned long long id;
	size_t count;
	CUgraphNode nodes[];
};

/* The rest is for a stream that takes part in a capture. */

/* The reason why the stream's capture accepts no more nodes; CUDA_SUCCESS if it does. */
CUresult capture_ready(CUstream stream);
/* Continue after these nodes, and with `keep` also after the previous ones. */
CUresult capture_set_nodes(CUstream stream, const CUgraphNode *nodes, size_t count, bool keep);
/* The stream continues after `node`, which was added after its nodes. */
CUresult capture_advance(CUstream stream, CUgraphNode node);

#endif
