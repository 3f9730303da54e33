/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a launch takes.
 */
#ifndef GPUSHARE_SIMULATOR_LAUNCH_H
#define GPUSHARE_SIMULATOR_LAUNCH_H

#include "module.h"

struct grid {
	unsigned int x, y, z;
	unsigned int block_x, block_y, block_z;
};

/* Card time of one launch in `context`, before slow motion, whose module is there then; an error
 * where it would be refused. */
CUresult launch_duration(CUfunction function, const struct grid *grid, void **parameters,
	void **extra, CUcontext context, uint64_t *duration_ns);

#endif
