/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream as a launch meets it: the pieces of work behind its last marker. The rest of a stream,
 * its markers, is the driver's side (cuda/marker.h). All with the account's lock.
 */
#ifndef GPUSHARE_LANE_H
#define GPUSHARE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#define GROUP_PARTS 12

/* Pieces between two markers of one stream. */
struct group {
	uint64_t estimate_ns;
	uint32_t pieces;
	uint8_t parts;
	uint8_t recent; /* the part of the last piece */
	bool has_more;	/* pieces that are in no part */
	bool is_guess;	/* nothing is known of how long it takes */
	struct {
		uint16_t place; /* in the estimates */
		uint32_t count;
	} part[GROUP_PARTS];
};

struct lane {
	uint64_t key;	     /* names the stream; 0: free */
	uint32_t generation; /* of the place: another stream's after each end */
	uint32_t added;	     /* pieces ever, to see whether it grows */
	uint8_t place;	     /* of the card's streams */
	bool is_plain;	     /* a marker once in a while will do */
	struct group open;   /* behind its last marker */
};

/* Where the piece is not like the one before it. */
void group_add_other(struct group *group, uint16_t place);

static inline void group_add(struct group *group, uint16_t place, uint64_t estimate_ns)
{
	group->estimate_ns += estimate_ns;
	group->pieces++;
	if (__builtin_expect(group->parts > 0 && group->part[group->recent].place == place, 1))
		group->part[group->recent].count++;
	else
		group_add_other(group, place);
}

#endif
