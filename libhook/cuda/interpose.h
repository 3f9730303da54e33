/* SPDX-License-Identifier: Apache-2.0
 *
 * How an entry point is mediated: a function of its name,
 *
 *     CUDA(cuMemFree_v2, (CUdeviceptr pointer))
 *     {
 *             ... REAL(cuMemFree_v2)(pointer) ...
 *     }
 *
 * in the file of its kind, replaces the weak trampoline that libhook/table/cuda.inc defines for the
 * symbol. dlsym, direct linking and cuGetProcAddress then all lead to that function.
 */
#ifndef GPUSHARE_CUDA_INTERPOSE_H
#define GPUSHARE_CUDA_INTERPOSE_H

#include "cuda_driver.h"
#include "evicted.h"

#pragma GCC visibility push(hidden)
#define CUDA_SYMBOL(symbol, name, version, stream) extern void (*real_##symbol)(void);
#include "table/cuda.inc"
#undef CUDA_SYMBOL
#pragma GCC visibility pop

#define CUDA(symbol, parameters) __attribute__((visibility("default"))) CUresult symbol parameters

/* The real driver's function. If this driver lacks it, it returns CUDA_ERROR_NOT_SUPPORTED. While
 * the tenant is evicted, this waits, at the last moment before the call: the library itself may
 * have waited since the program's call began. */
#define REAL(symbol) ((__typeof__(&symbol))(evicted_look(), real_##symbol))
/* The same right after the program's call, which has looked. */
#define REAL_AT_ONCE(symbol) ((__typeof__(&symbol))real_##symbol)

#endif
