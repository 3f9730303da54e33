/* SPDX-License-Identifier: Apache-2.0
 *
 * How a card's time is spent, computed by whichever process accesses it.
 *
 * One context runs at a time. While others have work too it runs for a slice, then the next has its
 * turn; nothing runs during a switch. Within a context, work is served in the order of submission,
 * whatever its stream: a kernel is assumed to fill the card, and copies pass through the same queue
 * (there are no copy engines). Kernels can be preempted anywhere.
 *
 * Work is a quantity of card time and needs no list: a queue is how much was submitted and how much
 * is served, in nanoseconds since the context was created. A time of interest is a marker.
 */
#ifndef GPUSHARE_SIMULATOR_ENGINE_H
#define GPUSHARE_SIMULATOR_ENGINE_H

#include "device.h"

/* Under the card's lock: serve everything up to `now`, and check for dead processes if the last
 * check was long ago. `now` is on clock_ns(); a time before the last one changes nothing. */
void engine_settle(struct sim_card *card, uint64_t now);

/* Under the lock, settled: the least time from now in which `context` can be served to `position`.
 * Others may join and make it longer. 0: it is there. */
uint64_t engine_least_wait(
	const struct sim_card *card, const struct sim_context *context, uint64_t position);

/* A free context of the card for this process, or null. Under the lock. */
struct sim_context *engine_context_new(struct sim_card *card);
void engine_context_drop(struct sim_context *context);

/* Under the lock: record the present end of the context's work as a marker, which is reached at
 * once if that is in the past. Returns its number. The caller ensures that no more than SIM_MARKERS
 * are pending (engine_marker_room). */
uint64_t engine_marker_add(struct sim_context *context, uint64_t now);
bool engine_marker_room(const struct sim_context *context);

/* Nanoseconds in which a card was busy in the periods `first` to `last` that are counted for
 * `process`; `newest` is the last of those, if any. Under the lock, settled. */
uint64_t busy_sampled_ns(const struct sim_card *card, uint32_t process, uint64_t first,
	uint64_t last, uint64_t *newest);

/* Share of the second before `now` in which `busy` was, in percent. Under the lock, settled. */
unsigned int busy_percent(const struct sim_busy *busy, uint64_t now);

#endif
