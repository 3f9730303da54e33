/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries: images that are loaded into each context when it first uses them.
 */
#ifndef GPUSHARE_CUDA_LIBRARY_H
#define GPUSHARE_CUDA_LIBRARY_H

void libraries_after_fork_in_child(void);

#endif
