/* SPDX-License-Identifier: Apache-2.0
 *
 * What the gate has the driver's side (cuda/marker*.c) do: work is put in groups by stream, and an
 * event recorded behind a group, a marker, tells when it ended and how long it took.
 */
#ifndef GPUSHARE_MARKERS_H
#define GPUSHARE_MARKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "gate.h"

/* What is to be done around a piece of work: record the start of a busy time before it or a marker
 * behind it, or tell the meter thread of work whose end no marker will tell. */
enum { MARK_START = 1, MARK_AFTER = 2, MARK_WATCH = 4 };

/* What stands for marker_ns where the page says nothing. */
#define MARKER_NS UINT64_C(500000)

/* So much estimated work is between two markers, by the page. */
static inline uint64_t gate_marker_ns(const struct gpushare_gate *gate)
{
	const uint64_t ns = atomic_load_explicit(&gate->marker_ns, memory_order_relaxed);

	return ns ? ns : MARKER_NS;
}

/* How many contexts the process is known to have: where there are several, each has default streams
 * of its own. */
#pragma GCC visibility push(hidden)
extern _Atomic unsigned gate_contexts;
#pragma GCC visibility pop

/* The key of the legacy default stream; of others it is their address. */
#define LANE_LEGACY 1

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
 * the driver may be asked. */
uint64_t markers_default_stream(const struct gate_work *work);

/* Whether that stream has a place already; and whether it has work behind its last marker. With the
 * account's lock. */
bool markers_know(struct gate_work *work);
bool markers_are_open(const struct gate_work *work);

/* Give the stream a place, if there is one. With no lock: the driver is asked. */
void markers_meet(struct gate_work *work);

/* Put the work in its stream's group, and say in work->marks what is to be done. With the lock,
 * after account_begin. */
void markers_add(struct gate_work *work, uint64_t marker_ns, bool was_idle);

/* It was not submitted: out of its group. With the lock; false where a marker has taken it on. */
bool markers_take_back(struct gate_work *work);

/* The rest with no lock. */
void markers_before(const struct gate_work *work);
void markers_after(const struct gate_work *work);

/* A marker behind what is behind the last one of the work's stream. */
void markers_close(const struct gate_work *work);

/* Look what has ended, where no thread of ours does: it could not be started. */
void markers_look_here(void);

void markers_after_fork_in_child(void);

#endif
