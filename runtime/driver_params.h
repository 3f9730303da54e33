/* SPDX-License-Identifier: Apache-2.0
 *
 * NVIDIA's params file in a container: covered by a copy that keeps its root from making device
 * nodes (gpushare/daemon/pages/driver_params.py says for which containers, and makes the copy).
 */
#ifndef GPUSHARE_RUNTIME_DRIVER_PARAMS_H
#define GPUSHARE_RUNTIME_DRIVER_PARAMS_H

/* Mount `copy` over `name`, a file below /proc, in the mount namespace of the process of `pidfd`,
 * where no link is followed. NULL, or why it is not covered. This process, which must have one
 * thread, is in that namespace meanwhile: a root file system there that does not answer holds it
 * up, as it does the low-level runtime. */
const char *driver_params_cover(int pidfd, const char *copy, const char *name);

#endif
