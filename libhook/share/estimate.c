/* SPDX-License-Identifier: Apache-2.0 */
#include "estimate.h"

#include <stddef.h>

#define PROBES 8

/* The weight of a measurement in an estimate that already has samples: an eighth for each unit of
 * work, at most half. */
#define WEIGHT_EACH 32
#define WEIGHT_MOST 128
#define WEIGHT_ONE 256

/* The largest change by one measurement, as a factor: a unit of work that was interrupted by
 * another context's time slice says little, and one among others says less. */
#define SAMPLE_MOST 16
#define HINT_MOST 4

uint16_t estimate_place_elsewhere(struct estimates *table, const void *what, uint32_t form)
{
	const uint32_t hash = estimate_hash(what, form);
	uint32_t poorest = hash % ESTIMATES;

	for (uint32_t probe = 0; probe < PROBES; probe++) {
		const uint32_t place = (hash + probe) % ESTIMATES;
		struct estimate *entry = &table->place[place];
		if (entry->form == form && entry->what == what)
			return (uint16_t)place;
		if (entry->form == 0) {
			poorest = place;
			break;
		}
		if (entry->samples < table->place[poorest].samples)
			poorest = place;
	}
	table->place[poorest] = (struct estimate){.what = what, .form = form};
	return (uint16_t)poorest;
}

/* `ns` times numerator by denominator; times are less than a day. */
static uint64_t scaled(uint64_t ns, uint64_t numerator, uint64_t denominator)
{
	return (uint64_t)((double)ns * ((double)numerator / (double)denominator));
}

static uint64_t bounded(uint64_t value, uint64_t least, uint64_t most)
{
	return value < least ? least : value > most ? most : value;
}

/* Rises at once and falls slowly: too low, and a window is far too long. */
void estimate_learn_unknown(struct estimates *table, uint16_t place, uint64_t taken_ns)
{
	const struct estimate *entry = &table->place[place];
	uint64_t *unknown_ns = &table->unknown_ns[(entry->form - 1) % ESTIMATE_KINDS];

	if (entry->samples > 0)
		return;
	if (taken_ns > *unknown_ns)
		*unknown_ns = taken_ns;
	else
		*unknown_ns -= (*unknown_ns - taken_ns) / 8;
}

void estimate_learn(struct estimates *table, uint16_t place, uint32_t count, uint64_t expected_ns,
	uint64_t taken_ns, int alone)
{
	struct estimate *entry = &table->place[place];
	const uint64_t before = entry->ns;

	if (count == 0)
		return;
	if (alone && entry->samples == 0) {
		entry->ns = taken_ns / count;
		entry->samples = 1;
		return;
	}
	if (entry->samples == 0 || expected_ns == 0)
		return; /* it is unknown which part was this one's */
	const uint64_t most = alone ? SAMPLE_MOST : HINT_MOST;
	uint64_t measured = alone ? taken_ns / count : scaled(before, taken_ns, expected_ns);
	measured = bounded(measured, before / most, before * most + 1000);
	const uint64_t weight =
		count < WEIGHT_MOST / WEIGHT_EACH ? count * WEIGHT_EACH : WEIGHT_MOST;
	entry->ns = (before * (WEIGHT_ONE - weight) + measured * weight) / WEIGHT_ONE;
	if (entry->samples < UINT32_MAX)
		entry->samples++;
}

/* The entry stays, because the search for the entries behind it passes over it. */
void estimate_forget(struct estimates *table, const void *what)
{
	for (unsigned place = 0; place < ESTIMATES; place++)
		if (table->place[place].form != 0 && table->place[place].what == what)
			table->place[place].samples = 0;
}
