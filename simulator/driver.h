/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the simulated libcuda: the objects behind CUDA's handles, and the prologue
 * of entry points. Objects are private to this process; what other processes may see of them is in
 * the device file.
 *
 * Lock order: space (memory.h), then a context's latch, then a card's lock.
 */
#ifndef GPUSHARE_SIMULATOR_DRIVER_H
#define GPUSHARE_SIMULATOR_DRIVER_H

#include "calls.h"
#include "cuda_driver.h"
#include "device.h"
#include "latch.h"

#define QUEUE_DEPTH 1024 /* launches that a context holds before the next one waits */
#define LIMITS CU_LIMIT_MAX

/* The first word of every object: detects a handle to something else, or to a destroyed object,
 * before it is used. */
enum object_kind {
	OBJECT_CONTEXT = 0x43545831,
	OBJECT_STREAM = 0x53545231,
	OBJECT_EVENT = 0x45564e31,
	OBJECT_MODULE = 0x4d4f4431,
	OBJECT_FUNCTION = 0x46554e31,
	OBJECT_POOL = 0x504f4f31,
	OBJECT_LINK = 0x4c4e4b31,
	OBJECT_ARRAY = 0x41525231,
	OBJECT_MIPMAP = 0x4d495031,
	OBJECT_GRAPH = 0x47524131,
	OBJECT_NODE = 0x4e4f4431,
	OBJECT_INSTANCE = 0x494e5331,
};

enum stream_flavour { STREAM_LEGACY, STREAM_PER_THREAD };

struct CUstream_st {
	uint32_t kind;
	unsigned int flags;
	CUcontext context;
	_Atomic uint64_t end_ns; /* position in the context's queue of the last submitted work */
	_Atomic uint64_t
		host_submitted; /* host functions submitted, and those that have returned */
	_Atomic uint64_t host_done;
	unsigned long long capture; /* in which it takes part, or took; 0: none yet */
	struct CUstream_st *next;
};

struct CUevent_st {
	uint32_t kind;
	unsigned int flags;
	CUcontext context; /* of the last record, null before */
	uint64_t marker;
	uint64_t reached_ns;  /* once known */
	CUstream host_stream; /* host functions that precede the event */
	uint64_t host_submitted;
	unsigned long long capture; /* of the last record, if that was in one */
};

struct CUctx_st {
	uint32_t kind;
	CUdevice device;
	unsigned int flags;
	bool primary;
	_Atomic unsigned int attached; /* the last of this many cuCtxDetach destroys it */
	struct sim_card *card;
	struct sim_context *queue;
	size_t limits[LIMITS];
	uint64_t green_bytes; /* of a primary context; under the card's lock */

	_Alignas(64) struct latch latch; /* guards what follows */
	uint64_t dry_ticks;		 /* the queue cannot be empty before */
	uint64_t position;		 /* between two queues: the end of its work */
	uint64_t launches;
	uint64_t ends[QUEUE_DEPTH]; /* end positions of the last launches */
	CUevent marked[SIM_MARKERS];
	CUstream streams;
	struct CUstream_st legacy;
	struct CUstream_st per_thread; /* one for all threads */
	struct CUctx_st *next;
};

/* Why entry points do not work yet or any more; CUDA_SUCCESS if they do. */
CUresult driver_status(void);
extern _Atomic bool driver_started;

#define REQUIRE_DRIVER()                                                                           \
	IN_CALL();                                                                                 \
	do {                                                                                       \
		CUresult driver_status_ = driver_status();                                         \
		if (driver_status_ != CUDA_SUCCESS)                                                \
			return driver_status_;                                                     \
	} while (0)

/* Declare `name` as the calling thread's current context, or return the error if there is none. */
#define REQUIRE_CONTEXT(name)                                                                      \
	IN_CALL();                                                                                 \
	CUcontext name;                                                                            \
	do {                                                                                       \
		CUresult context_status_ = context_current(&name);                                 \
		if (context_status_ != CUDA_SUCCESS)                                               \
			return context_status_;                                                    \
	} while (0)

#define REQUIRE(condition, error)                                                                  \
	do {                                                                                       \
		if (!(condition))                                                                  \
			return error;                                                              \
	} while (0)

CUresult context_current(CUcontext *context);
bool context_valid(CUcontext context);
/* The process's primary context of a device if it is active, without retaining it. */
CUcontext context_primary(CUdevice device);

/* context_limit.c: a new context's limits, and releasing what they took. */
void limits_begin(CUcontext context);
void limits_end(CUcontext context);

/* The devices of this process, found once. */
void devices_find(void);
uint32_t device_count(void);
bool device_valid(CUdevice ordinal);
struct sim_card *device_card(CUdevice ordinal);
/* -1: the process does not have it. */
CUdevice device_ordinal(const struct sim_card *card);

/* The stream of a handle, in the current context or in the stream's own. */
CUresult stream_resolve(CUstream handle, enum stream_flavour flavour, CUstream *stream);
void stream_begin(CUstream stream, CUcontext context, unsigned int flags);

/* Scales a duration on a real card to the simulated one (time scale). */
uint64_t duration_scaled(uint64_t duration_ns);

/* Add `duration_ns` of card time to the stream, after its earlier work. Blocks while the context's
 * queue is full. */
void queue_submit(CUstream stream, uint64_t duration_ns);
/* Wait until the context's queue is served to `position`. */
void queue_wait(CUcontext context, uint64_t position);
bool queue_reached(CUcontext context, uint64_t position);
/* Whether all work of all contexts has ended, including host functions. */
bool contexts_are_idle(void);
/* Idle contexts give up their queues, and get new ones where they left off: for another card. False
 * if a card has no room for one more. */
void contexts_leave_queues(void);
bool contexts_take_queues(void);
/* Wait for everything submitted to the context, including host functions. */
void context_drain(CUcontext context);
void stream_drain(CUstream stream);
bool stream_done(CUstream stream);

/* Whether one has been submitted and has not returned. */
bool host_functions_are_pending(void);
/* Wait until the first `submitted` host functions of the stream have returned. */
void host_functions_wait(CUstream stream, uint64_t submitted);

/* Under the context's latch: save the times of events whose marker is about to be reused. */
void event_forget_context(CUcontext context);
/* Called with no lock, after a wait: pools release what they retain. */
void pools_trim(void);
void pools_forget_context(CUcontext context);
void graphs_forget_context(CUcontext context);
void modules_forget_context(CUcontext context);

/* The error if a capture in progress, in any thread, forbids a call that is not part of it; that
 * capture becomes invalid. */
CUresult capture_forbids(void);
/* Whether calls on the stream are captured. The rest is then what becomes of one: it is refused, or
 * a node. */
bool stream_captures(CUstream stream);
CUresult capture_refuse(CUstream stream);
/* What asking an event of a capture returns; that capture becomes invalid. */
CUresult capture_refuse_event(CUevent event);
CUresult capture_work(CUstream stream, CUgraphNodeType type, uint64_t duration_ns);
CUresult capture_allocation(
	CUstream stream, CUmemLocation location, size_t bytes, CUdeviceptr *pointer);
CUresult capture_release(CUstream stream, CUdeviceptr pointer);
/* A wait for an event that was recorded in a capture: the stream takes part from now on. */
CUresult capture_wait(CUstream stream, CUevent event);
void capture_forget_stream(CUstream stream);

#define REQUIRE_NO_CAPTURE()                                                                       \
	do {                                                                                       \
		CUresult capture_status_ = capture_forbids();                                      \
		if (capture_status_ != CUDA_SUCCESS)                                               \
			return capture_status_;                                                    \
	} while (0)

/* The result that a test injected for calls that are about to take memory of the card, from the
 * device file; CUDA_SUCCESS: continue. Each call is counted once. */
CUresult fault_next(const struct sim_card *card);

/* The result of a call in a context of a lost card. */
static inline CUresult fault_of_card(const struct sim_card *card)
{
	const struct sim_faults *faults = &device->faults[card_place(card)];

	return atomic_load_explicit(&faults->lost, memory_order_relaxed) ? CUDA_ERROR_UNKNOWN
									 : CUDA_SUCCESS;
}

/* The same for queries whether an event was reached. */
CUresult fault_of_events(const struct sim_card *card);

/* Whether the card's compute mode forbids this process a context: nobody may have one, or one
 * process, which is the server for the clients of an MPS server. Under the card's lock. */
bool compute_mode_forbids(struct sim_card *card);

#define REQUIRE_NO_FAULT(card)                                                                     \
	do {                                                                                       \
		CUresult fault_ = fault_next(card);                                                \
		if (fault_ != CUDA_SUCCESS)                                                        \
			return fault_;                                                             \
	} while (0)

#endif
