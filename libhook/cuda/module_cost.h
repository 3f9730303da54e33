/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost of loading an image: its variables, constants and code, as far as it declares them. What
 * the driver adds, and what it compiles PTX to, is in the measured overhead. So is code that is
 * loaded function by function (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2): then most of
 * what an image declares is never loaded.
 */
#ifndef GPUSHARE_MODULE_COST_H
#define GPUSHARE_MODULE_COST_H

#include <stdbool.h>

#include "charge.h"
#include "interpose.h"

struct module_bytes {
	uint64_t device;
	uint64_t managed; /* not in the driver's figure for a process */
};

struct module_cost {
	struct charge device;
	struct charge managed;
};

/* The cost of loading the image, on the current card or, without a context, on the first. Zero if
 * it cannot be read: then the driver returns the error, or knows a format that this library does
 * not. */
struct module_bytes module_cost_measure(const void *image);
struct module_bytes module_cost_measure_file(const char *path);

/* Reserve it on the current context's card. */
CUresult module_cost_reserve(struct module_cost *cost, struct module_bytes bytes);

/* The driver's result, after retries (oom_retry.h) if the image declares any memory. */
#define RETRY_LOAD(cost, call) RETRY_ON_OOM(module_cost_card(&(cost)), (cost).device.bytes, (call))
unsigned module_cost_card(const struct module_cost *cost);

/* After the driver's result: keep the charge under `handle`, or release it. Return `result`. */
CUresult module_cost_settle(const struct module_cost *cost, CUresult result, uint64_t handle);

/* Remove the charge of `handle` before the driver unloads it. Afterwards, release it, or restore it
 * if the driver did not unload the image. */
struct module_charge {
	struct allocation device, managed; /* bytes 0: none */
};
struct module_charge module_cost_take(uint64_t handle);
void module_cost_free(const struct module_charge *charge, CUresult result);

/* Whether something is charged under `handle`. */
bool module_cost_is_charged(uint64_t handle);

/* A context was destroyed: the primary one of `card` if 0. */
void module_costs_end_context(uint64_t context, unsigned card);

void module_costs_after_fork_in_child(void);

#endif
