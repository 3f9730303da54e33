/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, and how long they take.
 */
#ifndef GPUSHARE_SIMULATOR_LAUNCH_H
#define GPUSHARE_SIMULATOR_LAUNCH_H

#include "module.h"

/* The `extra` form of parameters: one buffer with all, by the tags of cuda.h's
 * CU_LAUNCH_PARAM_*. */
#define LAUNCH_END ((void *)0)
#define LAUNCH_BUFFER ((void *)1)
#define LAUNCH_BUFFER_BYTES ((void *)2)

struct grid {
	unsigned int x, y, z;
	unsigned int block_x, block_y, block_z;
};

/* Card time of one launch in `context`, before the time scale, with its module loaded there; or the
 * error of the launch. */
CUresult launch_duration(CUfunction function, const struct grid *grid, void **parameters,
	void **extra, CUcontext context, uint64_t *duration_ns);

/* Submit it to a stream, or to the capture that the stream takes part in. */
CUresult launch(CUfunction function, const struct grid *grid, CUstream handle,
	enum stream_flavour flavour, void **parameters, void **extra);

#endif
