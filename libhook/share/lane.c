/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

void group_add_other(struct group *group, uint16_t place)
{
	for (uint8_t part = 0; part < group->parts; part++) {
		if (group->part[part].place != place)
			continue;
		group->part[part].count++;
		group->recent = part;
		return;
	}
	if (group->parts == GROUP_PARTS) {
		group->has_more = true;
		return;
	}
	group->recent = group->parts++;
	group->part[group->recent].place = place;
	group->part[group->recent].count = 1;
}
