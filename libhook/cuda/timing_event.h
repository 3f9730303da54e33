/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process knows which of its work the card has finished: CUDA events that are recorded after
 * groups of work (timing events) and that the meter thread queries.
 *
 *   timing_stream.c           streams in use, and the groups of work on them; no driver calls
 *   untimed_work.c            work that no timing event covers
 *   timing_context.c          contexts in use, and their events
 *   timing_stream_lifetime.c  streams that are created and destroyed
 *   timing_context_end.c      contexts that are destroyed
 *   timing_record.c           recording
 *   timing_read.c             finding finished work
 *   meter.c                   the thread that does so
 *
 * Lock order: `metering`, then an account's lock. The driver is called with `metering` held if the
 * call concerns other threads' streams and contexts, so that these are not destroyed meanwhile, and
 * never with an account's lock.
 */
#ifndef GPUSHARE_TIMING_EVENT_H
#define GPUSHARE_TIMING_EVENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "interpose.h"
#include "share/work_account.h"
#include "share/timing_events.h"

/* Of one card, in use at a time; work on a further one waits until one of them has none. */
#define TIMING_STREAMS 64
#define TIMING_CONTEXTS 32
/* Of one card: timing events that are recorded and not known to be reached, and batches of work
 * without one. */
#define TIMING_EVENTS 240
#define UNTIMED_WORK 16
/* Of one context: events that are kept for reuse. */
#define SPARE_EVENTS 248

struct timing_event {
	CUevent event;
	struct group group;
	uint64_t recorded_ns;
	uint64_t not_reached_ns; /* not reached yet at that time */
	uint64_t look_ns;	 /* not before */
	uint8_t context;
	uint8_t next; /* of the same stream, or of the free list */
};

/* A stream on which this process has or had work. */
struct timing_stream {
	_Alignas(64) struct stream_state state; /* what most launches need of it is on one line */
	CUstream handle;
	uint32_t added_seen;
	uint8_t context;
	uint8_t first, last; /* timing events, in the order of recording */
	uint8_t recording;   /* units of work whose threads will record a timing event themselves */
	bool per_thread;     /* its handle means a different stream in another thread */
	bool is_untimed;     /* no event can be recorded on it: counted by estimate alone */
};

/* A context with events of its own: times are measured between events of one context. */
struct timing_context {
	CUcontext handle; /* NULL: the slot is free */
	uint32_t generation;
	bool is_created; /* by the program, with cuCtxCreate: not a primary one */
	bool is_ending;
	CUevent last;	  /* up to which the card's time has been measured */
	uint64_t last_ns; /* when that was */
	uint16_t spare_count;
	CUevent spare[SPARE_EVENTS];
};

/* Work whose end no event shows, and when it should have finished. */
struct untimed_work {
	uint64_t estimate_ns, end_ns;
	uint64_t behind; /* not before this many of all units of work have finished */
	uint32_t pieces;
};

/* With the account's lock, of that card. */
struct card_timing {
	struct timing_stream streams[TIMING_STREAMS];
	struct timing_context contexts[TIMING_CONTEXTS];
	struct timing_event timing_events[TIMING_EVENTS];
	uint64_t live; /* streams with timing events, as bits */
	uint64_t open; /* streams with work after their last timing event */
	struct untimed_work untimed[UNTIMED_WORK]; /* a queue */
	uint8_t untimed_first, untimed_count;
	uint8_t free_timing_event; /* the first, if `ready` */
	uint8_t next_vacated;	   /* the context's slot that is considered first */
	bool ready;
	bool has_backlog; /* uncounted work may precede the first timing event */
};

/* The longest time between two checks. */
#define LOOK_MOST_NS UINT64_C(10000000)

/* How long after its start a group is checked first. A long unit of work may take much less time
 * than before, and until its end is seen the card idles. */
static inline uint64_t timing_first_look(const struct gpushare_gate *gate, uint64_t estimate_ns)
{
	return estimate_ns > 4 * gate_timing_interval_ns(gate) ? estimate_ns - estimate_ns / 3
							       : estimate_ns;
}

/* How long work after the last timing event waits for more before the meter records an event. */
#define OPEN_PART 2
#define OPEN_LEAST_NS UINT64_C(20000)
#define OPEN_MOST_NS UINT64_C(250000)

static inline uint64_t timing_open_ns(uint64_t estimate_ns)
{
	const uint64_t ns = estimate_ns / OPEN_PART;

	return ns < OPEN_LEAST_NS ? OPEN_LEAST_NS : ns > OPEN_MOST_NS ? OPEN_MOST_NS : ns;
}

#define NO_TIMING_EVENT UINT8_MAX
#define NO_STREAM UINT8_MAX
#define NO_CONTEXT UINT8_MAX
#define STREAM_GONE                                                                                \
	UINT64_MAX /* its key: only its timing events remain, and it cannot be found               \
		    */

#pragma GCC visibility push(hidden)
extern struct card_timing card_timing[GPUSHARE_MAX_CARDS];
extern pthread_mutex_t metering;
extern _Atomic bool timing_blocking_streams; /* streams that the legacy default stream waits for */
#pragma GCC visibility pop

/* ---- timing_stream.c, with the account's lock */

/* NO_STREAM: it has no slot. */
uint8_t stream_find(const struct card_timing *card, uint64_t key);
/* Assign a slot; NO_STREAM: all are in use. */
uint8_t stream_place(struct card_timing *card, uint64_t key);
void stream_end(struct card_timing *card, uint8_t stream);
/* Whether it has work, or a thread is about to record a timing event on it. */
bool stream_is_in_use(const struct card_timing *card, unsigned stream);
/* Append all of `more` to `group`. */
void group_join(struct group *group, const struct group *more);
/* Take the work after the stream's last timing event. */
struct group group_take(struct card_timing *card, uint8_t stream);
uint8_t timing_event_take(struct card_timing *card);
void timing_event_append(struct card_timing *card, uint8_t stream, uint8_t timing_event);
/* Remove the oldest from its stream's list and free it. */
void timing_event_remove(struct card_timing *card, uint8_t stream);
void timing_event_give_back(struct card_timing *card, uint8_t timing_event);
/* ---- untimed_work.c, with the account's lock; the first two return when it should have
 * finished */

uint64_t untimed_add(unsigned card, uint64_t estimate_ns, uint32_t pieces);
/* Make the work after the stream's last timing event untimed. */
uint64_t group_make_untimed(unsigned card, uint8_t stream);
/* Work that should have finished by now counts as finished. Returns when to check again;
 * UINT64_MAX: there is no more. */
uint64_t untimed_look(unsigned card, uint64_t now_ns);

/* ---- timing_context.c */

/* Make sure that a slot is free for the context, if one has no work. With no lock: the events of
 * the context that loses its slot are destroyed. */
void context_make_room(unsigned card, CUcontext handle);
/* With the account's lock. NO_CONTEXT: all slots are in use. */
uint8_t context_place(struct card_timing *card, CUcontext handle, bool is_created);
/* A spare event, or NULL. */
CUevent event_spare(struct timing_context *context);
/* With no lock: a spare event, or a new one of the current context. NULL: it could not be
 * created. */
CUevent event_get(unsigned card, uint8_t context);
/* With no lock. Keep it for reuse if the context is still that of `generation`. */
void event_put(unsigned card, uint8_t context, uint32_t generation, CUevent event);

/* ---- timing_record.c */

/* Record a timing event after the stream's open group, in a thread whose current context is the
 * stream's. If that is not possible, the group is counted by estimate. */
void timing_record(unsigned card, uint8_t stream, uint32_t generation);

/* ---- timing_read.c, with `metering` held */

/* Like timing_record, in another thread and with any current context. */
void timing_record_for(
	unsigned card, uint8_t place, const struct timing_stream *stream, CUcontext context);

/* Check all timing events of a card, whenever they were expected. */
void timing_events_are_due(unsigned card);
/* Process everything that has finished on a card by now. Returns when to check again; UINT64_MAX:
 * nothing is pending. */
uint64_t timing_look(unsigned card);

/* ---- timing_stream_lifetime.c */

/* A stream was created that the legacy default stream waits for. */
void timing_note_blocking_stream(void);

/* ---- meter.c, which defines the lock `metering` */

/* Take the lock, with a time limit: the driver may block its holder until a stream has room, which
 * the calling thread may be about to make. */
bool meter_hold(void);

/* A check is due at `look_ns`; the first call starts the thread. With no lock. */
void meter_watch(uint64_t look_ns);

/* Whether the program's own waits find its work finished, so that the meter thread only checks from
 * time to time that they still do. With an account's lock: work that was begun before the lock is
 * released is checked by the thread if they no longer do. */
bool meter_is_spared(void);

/* A thread waits until work has finished: check now, and as long as it waits. With no lock. */
void meter_hurry(void);

#endif
