/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's side of the gate (cuda/timing_*.c): work is grouped by stream, and a timing event
 * that is recorded after a group shows when the group finished and how long it took.
 */
#ifndef GPUSHARE_TIMING_EVENTS_H
#define GPUSHARE_TIMING_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "work_account.h"
#include "gate.h"

/* The steps around a unit of work: record the start of a busy period before it, record a timing
 * event after it, or wake the meter thread for work that no timing event covers. */
enum { TIMING_START = 1, TIMING_AFTER = 2, TIMING_WATCH = 4 };

/* Used if the page does not set timing_interval_ns. */
#define TIMING_INTERVAL_NS UINT64_C(500000)

/* The amount of estimated work between two timing events, from the page. */
static inline uint64_t gate_timing_interval_ns(const struct gpushare_gate *gate)
{
	const uint64_t ns = atomic_load_explicit(&gate->timing_interval_ns, memory_order_relaxed);

	return ns ? ns : TIMING_INTERVAL_NS;
}

/* The key of the legacy default stream. The key of other streams is their address. */
#define STREAM_KEY_LEGACY 1

/* cuda.h's CU_STREAM_LEGACY is 1, CU_STREAM_PER_THREAD 2. */
static inline bool gate_is_default_stream(const struct gate_work *work)
{
	return (uintptr_t)work->stream <= 2;
}

static inline bool gate_is_legacy_stream(const struct gate_work *work)
{
	return work->stream ? (uintptr_t)work->stream == 1 : !work->per_thread;
}

/* The key of a default stream of one of several contexts, or of the calling thread. With no lock:
 * may call the driver. */
uint64_t timing_default_stream(const struct gate_work *work);

/* Whether the stream has a slot already, and whether it has work after its last timing event. With
 * the account's lock. */
bool timing_find_stream(struct gate_work *work);
bool timing_has_stream(const struct gate_work *work);
bool timing_is_open(const struct gate_work *work);

/* Assign a slot to the stream, if one is free. With no lock: calls the driver. False: there is no
 * stream, because no context is current. */
bool timing_add_stream(struct gate_work *work);

/* Add the work to its stream's group, and set work->timing to what has to be done. With the lock,
 * after work_account_begin. */
void timing_add_work(struct gate_work *work, uint64_t timing_interval_ns, bool was_idle);

/* The work was not submitted: remove it from its group. With the lock; false if a timing event
 * already covers it. */
bool timing_take_back(struct gate_work *work);

/* The rest with no lock. */
void timing_before(const struct gate_work *work);
void timing_after(const struct gate_work *work);

/* Record a timing event after the open group of the work's stream. */
void timing_close(const struct gate_work *work);

/* Check for finished work in this thread, if the meter thread could not be started. */
void timing_look_here(void);

void timing_after_fork_in_child(void);

#endif
