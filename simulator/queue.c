/* SPDX-License-Identifier: Apache-2.0
 *
 * A context's queue as its own process sees it: submitting work, waiting for it.
 *
 * If a launch finds the queue empty, its work starts now, and that must be recorded at once under
 * the card's lock. While the queue cannot be empty yet, the launch only adds to it. The tick
 * counter distinguishes the two in a few nanoseconds; the process stores a time before which the
 * queue is certainly busy, computed as if no other process used the card.
 */
#include "driver.h"

#include "clock.h"
#include "engine.h"

#define SPIN_NS UINT64_C(60000) /* a sleep overshoots by the timer's slack, 50 us */
#define LAUNCH_BYTES_MOST (UINT32_C(256) << 10)
#define SLEEP_MOST_NS UINT64_C(20000000) /* others may exit or join: check again */

/* Ticks per 1024 ns, rounded down; 0 until two sufficiently distant times were measured. */
static _Atomic uint64_t tick_rate;
static _Atomic uint64_t first_ticks, first_ns;

static void learn_tick_rate(uint64_t now, uint64_t ticks)
{
	uint64_t began = atomic_load_explicit(&first_ns, memory_order_relaxed);
	uint64_t elapsed = now - began;

	if (began == 0) {
		atomic_store_explicit(&first_ticks, ticks, memory_order_relaxed);
		atomic_store_explicit(&first_ns, now, memory_order_relaxed);
	} else if (elapsed > 2000000 && elapsed < 10000000000) {
		uint64_t counted = ticks - atomic_load_explicit(&first_ticks, memory_order_relaxed);
		uint64_t rate = counted * 1024 / elapsed;

		atomic_store_explicit(&tick_rate, rate - rate / 512, memory_order_relaxed);
	}
}

/* Bring the card up to now; the caller holds its lock. */
static uint64_t settle(CUcontext context)
{
	uint64_t now = clock_ns();

	engine_settle(context->card, now);
	return now;
}

static uint64_t served(CUcontext context)
{
	return atomic_load_explicit(&context->queue->served_ns, memory_order_relaxed);
}

/* Add to a queue that may be empty; returns the end of the added work. */
static uint64_t submit_to_dry(CUcontext context, uint64_t duration_ns)
{
	uint64_t ticks = clock_ticks();
	uint64_t end;

	card_lock(context->card);
	learn_tick_rate(settle(context), ticks);
	end = atomic_load(&context->queue->submitted_ns) + duration_ns;
	atomic_store(&context->queue->submitted_ns, end);
	context->dry_ticks = ticks + (end - served(context)) * atomic_load(&tick_rate) / 1024;
	card_unlock(context->card);
	return end;
}

static uint64_t submit(CUcontext context, uint64_t duration_ns)
{
	uint64_t end = atomic_load_explicit(&context->queue->submitted_ns, memory_order_relaxed);

	if (duration_ns == 0)
		return end;
	if (clock_ticks() >= context->dry_ticks)
		return submit_to_dry(context, duration_ns);
	end += duration_ns;
	atomic_store_explicit(&context->queue->submitted_ns, end, memory_order_release);
	context->dry_ticks +=
		duration_ns * atomic_load_explicit(&tick_rate, memory_order_relaxed) / 1024;
	return end;
}

/* What a driver does in its own memory for a launch: by this, the profile makes a launch cost more,
 * and leaves less of the caller's data in the first cache. */
static void use_own_memory(CUcontext context)
{
	static struct {
		_Alignas(64) _Atomic uint64_t word;
	} lines[LAUNCH_BYTES_MOST / 64];
	const uint32_t bytes = card_profile(context->card)->launch_bytes;
	const uint32_t count = (bytes < LAUNCH_BYTES_MOST ? bytes : LAUNCH_BYTES_MOST) / 64;

	for (uint32_t i = 0; i < count; i++)
		atomic_store_explicit(&lines[i].word,
			atomic_load_explicit(&lines[i].word, memory_order_relaxed) + 1,
			memory_order_relaxed);
}

/* With the latch held: the launch QUEUE_DEPTH before this one must have ended. */
static void make_room(CUcontext context)
{
	uint64_t oldest;

	while ((oldest = context->ends[context->launches % QUEUE_DEPTH]) > served(context)) {
		latch_drop(&context->latch);
		queue_wait(context, oldest);
		latch_take(&context->latch);
	}
}

void queue_submit(CUstream stream, uint64_t duration_ns)
{
	CUcontext context = stream->context;
	uint64_t end;

	if (atomic_load_explicit(&stream->host_submitted, memory_order_relaxed) !=
		atomic_load_explicit(&stream->host_done, memory_order_acquire))
		host_functions_wait(stream, atomic_load(&stream->host_submitted));
	use_own_memory(context);
	latch_take(&context->latch);
	make_room(context);
	end = submit(context, duration_ns);
	context->ends[context->launches++ % QUEUE_DEPTH] = end;
	atomic_store_explicit(&stream->end_ns, end, memory_order_relaxed);
	/* The legacy stream comes after every stream that does not opt out. */
	if (!(stream->flags & CU_STREAM_NON_BLOCKING))
		atomic_store_explicit(&context->legacy.end_ns, end, memory_order_relaxed);
	latch_drop(&context->latch);
}

bool queue_reached(CUcontext context, uint64_t position)
{
	if (served(context) >= position)
		return true;
	card_lock(context->card);
	settle(context);
	card_unlock(context->card);
	return served(context) >= position;
}

static void sleep_ns(uint64_t duration)
{
	const struct timespec time = {.tv_sec = (time_t)(duration / 1000000000),
		.tv_nsec = (long)(duration % 1000000000)};

	nanosleep(&time, NULL);
}

void queue_wait(CUcontext context, uint64_t position)
{
	while (served(context) < position) {
		uint64_t wait;

		card_lock(context->card);
		settle(context);
		wait = engine_least_wait(context->card, context->queue, position);
		card_unlock(context->card);
		if (wait > SLEEP_MOST_NS)
			sleep_ns(SLEEP_MOST_NS);
		else if (wait > SPIN_NS)
			sleep_ns(wait - SPIN_NS);
		else if (wait > 0)
			sched_yield();
	}
}

void context_drain(CUcontext context)
{
	latch_take(&context->latch);
	for (CUstream stream = context->streams; stream; stream = stream->next) {
		uint64_t submitted = atomic_load(&stream->host_submitted);

		if (submitted == atomic_load(&stream->host_done))
			continue;
		latch_drop(&context->latch);
		host_functions_wait(stream, submitted);
		latch_take(&context->latch);
	}
	latch_drop(&context->latch);
	queue_wait(context, atomic_load(&context->queue->submitted_ns));
	pools_trim();
}
