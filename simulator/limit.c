/* SPDX-License-Identifier: Apache-2.0 */
#include "limit.h"

#include "piece.h"

#include <string.h>

static bool under(const struct sim_share *share, uint32_t limit)
{
	return share->limits[limit / 64] >> limit % 64 & 1;
}

static void note(struct sim_share *share, uint32_t limit, bool is_under)
{
	uint64_t bit = UINT64_C(1) << limit % 64;

	if (is_under)
		share->limits[limit / 64] |= bit;
	else
		share->limits[limit / 64] &= ~bit;
}

static bool is_same(const struct cgroup *one, const struct cgroup *other)
{
	return one->inode == other->inode && one->filesystem == other->filesystem;
}

/* The inode makes an entry valid: it is removed first, and written last. */
static void forget(struct sim_card *card, uint32_t limit)
{
	card->limits[limit].cgroup.inode = 0;
	for (uint32_t i = 0; i < SIM_PROCESSES; i++)
		note(&card->shares[i], limit, false);
	while (card->limits_high > 0 && card->limits[card->limits_high - 1].cgroup.inode == 0)
		card->limits_high--;
}

void limits_find(struct sim_card *card, uint32_t process, int pid)
{
	struct sim_share *share = &card->shares[process];
	struct cgroup_place place;

	cgroup_ask(&place, pid);
	for (uint32_t i = 0; i < card->limits_high; i++) {
		const struct cgroup *cgroup = &card->limits[i].cgroup;
		enum membership membership = NOT_MEMBER;

		if (cgroup->inode != 0)
			membership = cgroup_member(&place, cgroup);
		/* A cgroup that was created again has the path of the one that had the limit. */
		if (membership == MEMBER && !cgroup_lives(cgroup))
			forget(card, i);
		else if (membership != MEMBER_UNKNOWN)
			note(share, i, membership == MEMBER);
		else if (pid == 0)
			share->limits_unknown = 1;
	}
}

void limits_find_own(struct sim_card *card)
{
	uint32_t process = tag_process(process_tag());

	card->shares[process].limits_unknown = 0;
	limits_find(card, process, 0);
}

void limits_find_all(struct sim_card *card, bool unknown)
{
	uint32_t high = card->limits_high > 0 ? atomic_load(&device->processes_high) : 0;

	for (uint32_t i = 0; i < high; i++) {
		const struct sim_share *share = &card->shares[i];
		uint64_t tag = atomic_load(&device->processes[i].generation) << 16 | (i + 1);
		int pid = 0;

		if ((unknown && !share->limits_unknown) ||
			(share->contexts == 0 && process_bytes(card, i) == 0))
			continue;
		if (process_alive(tag, &pid) && pid != 0)
			limits_find(card, i, pid);
	}
}

uint64_t limit_used_bytes(const struct sim_card *card, const struct sim_limit *limit)
{
	uint32_t high = atomic_load(&device->processes_high);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < high; i++) {
		if (under(&card->shares[i], (uint32_t)(limit - card->limits)))
			sum += process_bytes(card, i);
	}
	return sum;
}

bool limits_allow(const struct sim_card *card, uint64_t bytes)
{
	const struct sim_share *own = &card->shares[tag_process(process_tag())];

	for (uint32_t i = 0; i < card->limits_high; i++) {
		const struct sim_limit *limit = &card->limits[i];
		uint64_t used;

		if (!under(own, i) || limit->hard_bytes == LIMIT_NONE)
			continue;
		used = limit_used_bytes(card, limit);
		if (used > limit->hard_bytes || bytes > limit->hard_bytes - used)
			return false;
	}
	return true;
}

struct sim_limit *limit_of(struct sim_card *card, const struct cgroup *cgroup)
{
	for (uint32_t i = 0; i < card->limits_high; i++) {
		if (is_same(&card->limits[i].cgroup, cgroup))
			return &card->limits[i];
	}
	return NULL;
}

/* A slot for one more, after removing the limits of cgroups that no longer exist. */
static uint32_t free_place(struct sim_card *card)
{
	uint32_t place = 0;

	for (uint32_t i = card->limits_high; i-- > 0;) {
		if (card->limits[i].cgroup.inode != 0 && !cgroup_lives(&card->limits[i].cgroup))
			forget(card, i);
	}
	while (place < SIM_LIMITS && card->limits[place].cgroup.inode != 0)
		place++;
	return place;
}

bool limit_set(struct sim_card *card, const struct cgroup *cgroup, uint64_t soft_bytes,
	uint64_t hard_bytes)
{
	struct sim_limit *limit = limit_of(card, cgroup);
	uint32_t place;

	if (limit) {
		limit->soft_bytes = soft_bytes;
		limit->hard_bytes = hard_bytes;
		return true;
	}
	place = free_place(card);
	if (place == SIM_LIMITS)
		return false;
	limit = &card->limits[place];
	*limit = (struct sim_limit){
		.cgroup = *cgroup, .soft_bytes = soft_bytes, .hard_bytes = hard_bytes};
	limit->cgroup.inode = 0;
	atomic_signal_fence(memory_order_seq_cst);
	limit->cgroup.inode = cgroup->inode;
	if (card->limits_high <= place)
		card->limits_high = place + 1;
	return true;
}
