/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream as a launch sees it: the units of work after its last timing event. Its timing events
 * belong to the driver's side (cuda/timing_event.h). All with the account's lock.
 */
#ifndef GPUSHARE_STREAM_STATE_H
#define GPUSHARE_STREAM_STATE_H

#include <stdbool.h>
#include <stdint.h>

#define GROUP_PARTS 12

/* Units of work between two timing events of one stream. */
struct group {
	uint64_t estimate_ns;
	uint32_t pieces;
	uint8_t parts;
	uint8_t recent; /* the part of the last unit of work */
	bool has_more;	/* units of work that are in no part */
	bool is_guess;	/* there is no estimate of its duration */
	struct {
		uint16_t place; /* in the estimates */
		uint32_t count;
	} part[GROUP_PARTS];
};

struct stream_state {
	uint64_t key;	     /* identifies the stream; 0: free */
	uint32_t generation; /* of the slot: incremented when a stream ends */
	uint32_t added;	     /* units of work ever added, to see whether the stream grows */
	uint8_t place;	     /* among the card's streams */
	bool is_plain;	     /* occasional timing events are sufficient */
	struct group open;   /* after its last timing event */
};

/* For work that differs from the previous one. Programs launch several kernels by turns, and this
 * is inline so that their launches call nothing either. */
__attribute__((always_inline)) static inline void group_add_other(
	struct group *group, uint16_t place)
{
	uint8_t part = 0;

	while (part < group->parts && group->part[part].place != place)
		part++;
	if (part == GROUP_PARTS) {
		group->has_more = true;
		return;
	}
	if (part == group->parts) {
		group->parts++;
		group->part[part].place = place;
		group->part[part].count = 0;
	}
	group->part[part].count++;
	group->recent = part;
}

__attribute__((always_inline)) static inline void group_add(
	struct group *group, uint16_t place, uint64_t estimate_ns)
{
	group->estimate_ns += estimate_ns;
	group->pieces++;
	if (__builtin_expect(group->parts > 0 && group->part[group->recent].place == place, 1))
		group->part[group->recent].count++;
	else
		group_add_other(group, place);
}

#endif
