/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process knows what the card has done of its work: markers, events that are recorded behind
 * groups of work and that the meter thread looks at.
 *
 *   marker_stream.c   streams in use, and the groups of work on them; no driver
 *   marker_loose.c    work that no marker tells of
 *   marker_context.c  contexts in use, and their events
 *   marker_life.c     streams that begin and end
 *   marker_end.c      contexts that end
 *   marker_record.c   recording
 *   marker_read.c     what has ended
 *   meter.c           the thread that looks
 *
 * Lock order: `metering`, then an account's lock. The driver is called with `metering` held where
 * it is about other threads' streams and contexts, so that these are not destroyed meanwhile, and
 * never with an account's lock.
 */
#ifndef GPUSHARE_MARKER_H
#define GPUSHARE_MARKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "filter.h"
#include "share/account.h"
#include "share/markers.h"

#define MARKER_STREAMS 64 /* in use at a time on one card; more are counted by estimate alone */
#define MARKER_CONTEXTS 8 /* likewise */
#define MARKERS 240	  /* recorded and not seen to be reached, of one card */
#define LOOSE 16	  /* lots of work without a marker, each of which ends as one */
#define MARKER_EVENTS 248 /* of one context, kept for use again */

struct marker {
	CUevent event;
	struct group group;
	uint64_t recorded_ns;
	uint64_t not_reached_ns; /* it was not yet, then */
	uint64_t look_ns;	 /* not before */
	uint8_t context;
	uint8_t next; /* of the same stream, or of those that are free */
};

/* A stream that this process has work on, or had. */
struct marker_stream {
	struct lane lane;
	CUstream handle;
	uint32_t added_seen;
	uint8_t context;
	uint8_t first, last; /* markers, in the order of recording */
	uint8_t marking;     /* pieces whose threads are going to record a marker themselves */
	bool per_thread;     /* its handle means another stream in another thread */
	bool is_loose;	     /* no event can be recorded on it: by estimate alone */
};

/* A context with events of its own: times are measured between events of one context. */
struct marker_context {
	CUcontext handle; /* NULL: the place is free */
	uint32_t generation;
	bool is_created; /* by the program, with cuCtxCreate: not a primary one */
	bool is_ending;
	CUevent last;	  /* up to which the card's time has been measured */
	uint64_t last_ns; /* when that was */
	uint16_t spare_count;
	CUevent spare[MARKER_EVENTS];
};

/* What no event tells the end of, and when it should have ended. */
struct loose {
	uint64_t estimate_ns, end_ns;
	uint64_t behind; /* not before so many of all pieces have ended */
	uint32_t pieces;
};

/* With the account's lock, of that card. */
struct card_markers {
	struct marker_stream streams[MARKER_STREAMS];
	struct marker_context contexts[MARKER_CONTEXTS];
	struct marker markers[MARKERS];
	uint64_t live;		   /* streams with markers, as bits */
	uint64_t open;		   /* streams with pieces behind their last marker */
	struct loose loose[LOOSE]; /* a queue */
	uint8_t loose_first, loose_count;
	uint8_t free_marker; /* the first, if `ready` */
	bool ready;
	bool has_backlog; /* work that nobody counted may be before the first marker */
};

/* The longest time between two looks. */
#define LOOK_MOST_NS UINT64_C(10000000)

/* How long after its beginning a group is looked at first. One long piece may take much less than
 * it did before, and until that is seen the card has nothing to do. */
static inline uint64_t marker_first_look(const struct gpushare_gate *gate, uint64_t estimate_ns)
{
	return estimate_ns > 4 * gate_marker_ns(gate) ? estimate_ns - estimate_ns / 3 : estimate_ns;
}

#define NO_MARKER UINT8_MAX
#define NO_STREAM UINT8_MAX
#define NO_CONTEXT UINT8_MAX
#define STREAM_GONE UINT64_MAX /* its key: its markers are left, and it will not be found */

#pragma GCC visibility push(hidden)
extern struct card_markers card_markers[GPUSHARE_MAX_CARDS];
extern pthread_mutex_t metering;
extern _Atomic bool marker_blocking_streams; /* that the legacy default one waits for */
#pragma GCC visibility pop

/* ---- marker_stream.c, with the account's lock */

/* NO_STREAM: it has no place. */
uint8_t stream_find(const struct card_markers *card, uint64_t key);
/* A place for it; NO_STREAM: all are in use. */
uint8_t stream_place(struct card_markers *card, uint64_t key);
void stream_end(struct card_markers *card, uint8_t stream);
/* All of `more` behind what `group` has. */
void group_join(struct group *group, const struct group *more);
/* Take what is behind the stream's last marker. */
struct group group_take(struct card_markers *card, uint8_t stream);
void group_give_back(struct card_markers *card, uint8_t stream, const struct group *group);
uint8_t marker_take(struct card_markers *card);
void marker_append(struct card_markers *card, uint8_t stream, uint8_t marker);
/* The oldest out of its stream's list; its place is free then. */
void marker_remove(struct card_markers *card, uint8_t stream);
void marker_give_back(struct card_markers *card, uint8_t marker);
/* ---- marker_loose.c, with the account's lock; the first two return when it should have ended */

uint64_t loose_add(unsigned card, uint64_t estimate_ns, uint32_t pieces);
/* What is behind the stream's last marker. */
uint64_t group_is_loose(unsigned card, uint8_t stream);
/* What should have ended by now has. Returns when to look again; UINT64_MAX: there is no more. */
uint64_t loose_look(unsigned card, uint64_t now_ns);

/* ---- marker_context.c */

/* With the account's lock. NO_CONTEXT: all places are taken. */
uint8_t context_place(struct card_markers *card, CUcontext handle, bool is_created);
/* A spare event, NULL: there is none. */
CUevent event_spare(struct marker_context *context);
/* With no lock: a spare one, or a new one of the current context. NULL: none could be made. */
CUevent event_get(unsigned card, uint8_t context);
/* With no lock. Keep it for use again if the context is still the one of `generation`. */
void event_put(unsigned card, uint8_t context, uint32_t generation, CUevent event);

/* ---- marker_record.c */

/* Record a marker behind the stream's open group, by a thread whose current context is the
 * stream's. Where that is not possible its pieces are counted by their estimate. */
void marker_record(unsigned card, uint8_t stream, uint32_t generation);

/* ---- marker_read.c, with `metering` held */

/* As marker_record, by another thread and wherever its context is current. */
void marker_record_for(
	unsigned card, uint8_t place, const struct marker_stream *stream, CUcontext context);

/* All markers of a card are to be looked at, whenever they were expected. */
void markers_are_due(unsigned card);
/* What has ended on a card by now. Returns when to look again; UINT64_MAX: nothing is pending. */
uint64_t markers_look(unsigned card);

/* ---- marker_life.c */

/* A stream that the legacy default one waits for. */
void marker_meet_blocking_stream(void);

/* ---- meter.c, whose lock `metering` is */

/* Take it, but for a time only: the driver may keep who has it waiting, until a stream has room,
 * for what the calling thread is about to do. */
bool meter_hold(void);

/* Somebody is to look at `look_ns`; the thread is started by the first to ask. With no lock. */
void meter_watch(uint64_t look_ns);

#endif
