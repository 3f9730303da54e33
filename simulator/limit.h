/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory limits of cgroups on a card, set through NVML and enforced here, beneath any library
 * between a program and the driver. A process that can tell which limits apply to it does so each
 * time that it takes memory; for one that cannot, NVML does so at its next query about the card.
 * All of these are called with the card's lock held.
 */
#ifndef GPUSHARE_SIMULATOR_LIMIT_H
#define GPUSHARE_SIMULATOR_LIMIT_H

#include "device.h"

#define LIMIT_NONE UINT64_MAX

/* Record which of the card's limits apply to this process. */
void limits_find_own(struct sim_card *card);
/* The same for another living process, `pid` as /proc here numbers it. */
void limits_find(struct sim_card *card, uint32_t process, int pid);
/* For all that are alive and have a number here; with `unknown`, only those that cannot tell. */
void limits_find_all(struct sim_card *card, bool unknown);

/* Whether this process may hold `bytes` more under each of its limits. */
bool limits_allow(const struct sim_card *card, uint64_t bytes);

/* The cgroup's limit, null if none was set. */
struct sim_limit *limit_of(struct sim_card *card, const struct cgroup *cgroup);
/* Set or change it; false if the card holds no more. */
bool limit_set(struct sim_card *card, const struct cgroup *cgroup, uint64_t soft_bytes,
	uint64_t hard_bytes);
/* The memory held under it. */
uint64_t limit_used_bytes(const struct sim_card *card, const struct sim_limit *limit);

#endif
