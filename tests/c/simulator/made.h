/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver for one C test program, with the cards of device_file.h.
 */
#ifndef GPUSHARE_TESTS_SIMULATOR_MADE_H
#define GPUSHARE_TESTS_SIMULATOR_MADE_H

#include "cuda_driver.h"
#include "device_file.h"

/* Make the file, name it in the environment, start the driver and a context on card 0. */
CUcontext made_context(void);

/* Bytes that the current context's card has left. */
size_t free_bytes(void);

/* A kernel that runs as long as its one parameter says, and a launch of it, in any context. */
CUkernel timed_kernel(void);
CUresult launch_ns(CUstream stream, uint64_t duration_ns);

void test_memory(void);
void test_streams(void);
void test_graphs(void);
void test_graph_memory(void);
void test_modules(void);
void test_pools(void);
void test_arrays(void);
void test_capture(void);
void test_contexts(void);
void test_shallow(void);
void test_work(void);

#endif
