/* SPDX-License-Identifier: Apache-2.0
 *
 * What loading an image costs: its variables, constants and code, as far as it declares them. What
 * the driver adds of its own, and what it compiles PTX to, is in the measured overhead. So is code
 * where it is loaded function by function (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2):
 * then most of what an image declares never comes to the card.
 */
#ifndef GPUSHARE_LOAD_H
#define GPUSHARE_LOAD_H

#include <stdbool.h>

#include "charge.h"
#include "filter.h"

struct load_bytes {
	uint64_t device;
	uint64_t managed; /* in no figure that the driver has of a process */
};

struct load {
	struct charge device;
	struct charge managed;
};

/* What loading the image will take, on the current card or, without a context, on the first.
 * Nothing if it cannot be read: then the driver says what is wrong, or knows more than we do. */
struct load_bytes load_measure(const void *image);
struct load_bytes load_measure_file(const char *path);

/* Reserve it on the current context's card. */
CUresult load_reserve(struct load *load, struct load_bytes bytes);

/* The driver's answer, on which it is insisted (insist.h) where the image declares anything. */
#define LOADED(load, call) INSIST(load_card(&(load)), (load).device.bytes, (call))
unsigned load_card(const struct load *load);

/* After the driver's answer: keep the charge under `handle`, or give it back. Return `result`. */
CUresult load_settle(const struct load *load, CUresult result, uint64_t handle);

/* Take the charge of `handle` out, before the driver unloads it; give it back after, or put it in
 * again if the driver did not unload it. */
struct loaded {
	struct allocation device, managed; /* bytes 0: none */
};
struct loaded load_take(uint64_t handle);
void load_free(const struct loaded *loaded, CUresult result);

/* Whether something is charged under `handle`. */
bool load_is_charged(uint64_t handle);

/* A context has ended, `card`'s primary one if 0. */
void loads_end_context(uint64_t context, unsigned card);

void loads_after_fork_in_child(void);

#endif
