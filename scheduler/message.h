/* SPDX-License-Identifier: Apache-2.0
 *
 * What gpushared tells the scheduler: who has which part of which card. SOCK_SEQPACKET on
 * <run_dir>/scheduler.sock, root only; one message, one answer. The scheduler outlives gpushared: a
 * new connection begins with HELLO, names every tenant, and ends with COMPLETE, upon which tenants
 * that were not named are forgotten. One that knew nobody decides nothing before COMPLETE:
 * meanwhile the tenants hold themselves. gpushare/daemon/compute/schedule.py mirrors it.
 */
#ifndef GPUSHARE_SCHEDULER_MESSAGE_H
#define GPUSHARE_SCHEDULER_MESSAGE_H

#include <stdint.h>

#include "gpushare_abi.h"

#define SCHEDULE_VERSION 1

enum schedule_type {
	SCHEDULE_HELLO = 1, /* as every message answered with a schedule_answer */
	SCHEDULE_TENANT =
		2, /* new or changed; of a new one the directory's descriptor comes along */
	SCHEDULE_REMOVE = 3,   /* one that is not there is fine */
	SCHEDULE_COMPLETE = 4, /* all tenants have been named since HELLO */
};

struct schedule_share {
	char uuid[48]; /* of the card, NUL-terminated */
	uint32_t permille;
	uint32_t capped;   /* 0 or 1 */
	uint32_t online;   /* 0 or 1 */
	uint32_t priority; /* 0 first */
};

struct schedule_message {
	uint32_t type;
	uint32_t version;
	char key[24]; /* of the tenant, NUL-terminated */
	uint32_t card_count;
	uint32_t reserved;
	struct schedule_share shares[GPUSHARE_MAX_CARDS]; /* by the tenant's card number; only as
							     many as card_count are sent */
};

struct schedule_answer {
	uint32_t version;
	int32_t error; /* errno, 0: done */
	int32_t pid;
	uint32_t tenants;
	uint32_t slow; /* how often its durations are multiplied */
};

_Static_assert(sizeof(struct schedule_share) == 64, "layout");
_Static_assert(sizeof(struct schedule_message) == 40 + 64 * GPUSHARE_MAX_CARDS, "layout");

#endif
