/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <string.h>

#define LOOK_FOR_DEAD_NS UINT64_C(5000000)

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t backlog(const struct sim_context *context)
{
	uint64_t served = atomic_load_explicit(&context->served_ns, memory_order_relaxed);
	uint64_t submitted = atomic_load_explicit(&context->submitted_ns, memory_order_acquire);

	return atomic_load(&context->owner) ? submitted - served : 0;
}

static void busy_add(struct sim_busy *busy, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t epoch = from / SIM_BUSY_BUCKET_NS;
		uint64_t end = least(to, (epoch + 1) * SIM_BUSY_BUCKET_NS);

		if (epoch - busy->epoch >= SIM_BUSY_BUCKETS) {
			memset(busy->ns, 0, sizeof(busy->ns));
			busy->epoch = epoch;
		}
		while (busy->epoch < epoch)
			busy->ns[++busy->epoch % SIM_BUSY_BUCKETS] = 0;
		busy->ns[epoch % SIM_BUSY_BUCKETS] += end - from;
		from = end;
	}
}

static void period_add(struct sim_card *card, uint32_t process, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t epoch = from / SIM_PERIOD_NS;
		uint64_t end = least(to, (epoch + 1) * SIM_PERIOD_NS);
		struct sim_period *period = &card->periods[epoch % SIM_PERIODS];

		if (period->epoch != epoch)
			*period = (struct sim_period){.epoch = epoch};
		period->busy_ns += (uint32_t)(end - from);
		period->process = process;
		from = end;
	}
}

uint64_t busy_sampled_ns(const struct sim_card *card, uint32_t process, uint64_t first,
	uint64_t last, uint64_t *newest)
{
	uint64_t sum = 0;

	for (uint64_t epoch = first; epoch <= last; epoch++) {
		const struct sim_period *period = &card->periods[epoch % SIM_PERIODS];

		if (period->epoch != epoch || period->process != process)
			continue;
		sum += period->busy_ns;
		*newest = epoch;
	}
	return sum;
}

unsigned int busy_percent(const struct sim_busy *busy, uint64_t now)
{
	uint64_t epoch = now / SIM_BUSY_BUCKET_NS;
	uint64_t window = (SIM_BUSY_BUCKETS - 1) * SIM_BUSY_BUCKET_NS + now % SIM_BUSY_BUCKET_NS;
	uint64_t sum = 0;

	for (uint64_t age = 0; age < SIM_BUSY_BUCKETS; age++) {
		if (epoch - age <= busy->epoch && busy->epoch - (epoch - age) < SIM_BUSY_BUCKETS)
			sum += busy->ns[(epoch - age) % SIM_BUSY_BUCKETS];
	}
	return (unsigned int)least(100, (sum * 100 + window / 2) / window);
}

static void reach_markers(struct sim_context *context, uint64_t from, uint64_t served_before)
{
	uint64_t served = atomic_load_explicit(&context->served_ns, memory_order_relaxed);
	uint64_t added = atomic_load(&context->markers_added);
	uint64_t next = atomic_load(&context->markers_reached);

	for (; next < added; next++) {
		struct sim_marker *marker = &context->markers[next % SIM_MARKERS];

		if (marker->position > served)
			break;
		atomic_store(&marker->reached_ns, from + (marker->position - served_before));
	}
	atomic_store(&context->markers_reached, next);
}

/* The running context has the card from the card's clock to `to`. */
static void serve(struct sim_card *card, struct sim_context *context, uint64_t to)
{
	uint64_t from = card->clock_ns;
	uint64_t before = atomic_fetch_add(&context->served_ns, to - from);

	busy_add(&card->busy, from, to);
	period_add(card, tag_process(atomic_load(&context->owner)), from, to);
	reach_markers(context, from, before);
	card->clock_ns = to;
}

/* The next context after the running one that has work, or SIM_CONTEXTS. */
static uint32_t next_waiting(const struct sim_card *card)
{
	for (uint32_t step = 1; step <= card->contexts_high; step++) {
		uint32_t i = (card->running + step) % card->contexts_high;

		if (i != card->running && backlog(&card->contexts[i]) > 0)
			return i;
	}
	return SIM_CONTEXTS;
}

static void switch_to(struct sim_card *card, uint32_t context, uint64_t cost)
{
	card->running = context;
	card->switch_end_ns = card->clock_ns + cost;
	card->slice_end_ns = card->switch_end_ns + card_profile(card)->slice_ns;
}

/* One stretch of time without a switch; false if there is no work at all. */
static bool advance(struct sim_card *card, uint64_t now)
{
	const struct sim_profile *profile = card_profile(card);
	struct sim_context *running = &card->contexts[card->running];
	uint64_t work = backlog(running);
	uint32_t waiting = next_waiting(card);

	if (card->clock_ns < card->switch_end_ns) {
		card->clock_ns = least(now, card->switch_end_ns);
		return true;
	}
	if (work == 0) {
		if (waiting == SIM_CONTEXTS)
			return false;
		switch_to(card, waiting, profile->switch_drained_ns);
		return true;
	}
	if (waiting == SIM_CONTEXTS) {
		serve(card, running, least(now, card->clock_ns + work));
		/* Alone, it gets slice after slice: the next context waits for the end of one. */
		if (card->clock_ns >= card->slice_end_ns)
			card->slice_end_ns +=
				((card->clock_ns - card->slice_end_ns) / profile->slice_ns + 1) *
				profile->slice_ns;
		return true;
	}
	if (card->clock_ns >= card->slice_end_ns) {
		switch_to(card, waiting, profile->switch_preempt_ns);
		return true;
	}
	serve(card, running, least(least(now, card->slice_end_ns), card->clock_ns + work));
	return true;
}

void engine_settle(struct sim_card *card, uint64_t now)
{
	if (now - card->looked_ns > LOOK_FOR_DEAD_NS && now > card->looked_ns)
		card_reap(card);
	if (card->contexts_high > 0) {
		while (card->clock_ns < now && advance(card, now))
			;
	}
	if (card->clock_ns < now) {
		card->clock_ns = now;
		card->slice_end_ns =
			now + card_profile(card)->slice_ns; /* of the context that is first */
	}
}

uint64_t engine_least_wait(
	const struct sim_card *card, const struct sim_context *context, uint64_t position)
{
	const struct sim_context *running = &card->contexts[card->running];
	uint64_t served = atomic_load(&context->served_ns);
	uint64_t wait;

	if (served >= position)
		return 0;
	wait = position - served;
	if (card->switch_end_ns > card->clock_ns)
		wait += card->switch_end_ns - card->clock_ns;
	if (running != context && backlog(running) > 0) {
		uint64_t turn = card->slice_end_ns > card->clock_ns
					? card->slice_end_ns - card->clock_ns
					: 0;

		wait += least(turn, backlog(running));
	}
	return wait;
}

struct sim_context *engine_context_new(struct sim_card *card)
{
	for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
		struct sim_context *context = &card->contexts[i];

		if (atomic_load(&context->owner) != 0)
			continue;
		memset(context, 0, sizeof(*context));
		if (i >= card->contexts_high)
			card->contexts_high = i + 1;
		atomic_store(&context->owner, process_tag());
		return context;
	}
	return NULL;
}

void engine_context_drop(struct sim_context *context)
{
	atomic_store(&context->owner, 0);
}

bool engine_marker_room(const struct sim_context *context)
{
	return atomic_load(&context->markers_added) - atomic_load(&context->markers_reached) <
	       SIM_MARKERS;
}

uint64_t engine_marker_add(struct sim_context *context, uint64_t now)
{
	uint64_t number = atomic_load(&context->markers_added);
	struct sim_marker *marker = &context->markers[number % SIM_MARKERS];

	marker->position = atomic_load(&context->submitted_ns);
	atomic_store(&marker->reached_ns, 0);
	atomic_store(&context->markers_added, number + 1);
	/* The engine is at `now`: served work ends at this time for every reader. */
	if (marker->position <= atomic_load(&context->served_ns))
		reach_markers(context, now, atomic_load(&context->served_ns));
	return number;
}
