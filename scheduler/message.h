/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from gpushared to the scheduler: each tenant's share of each card. SOCK_SEQPACKET on
 * <run_dir>/scheduler.sock, root only; one reply per message. The scheduler outlives gpushared: a
 * new connection begins with HELLO, names every tenant, and ends with COMPLETE, whereupon tenants
 * that were not named are forgotten. A scheduler without tenants decides nothing before COMPLETE:
 * meanwhile the tenants throttle themselves. gpushare/daemon/scheduler_sync.py mirrors this
 * header.
 */
#ifndef GPUSHARE_SCHEDULER_MESSAGE_H
#define GPUSHARE_SCHEDULER_MESSAGE_H

#include <stdint.h>

#include "gpushare_abi.h"

#define SCHEDULE_VERSION 2

enum schedule_type {
	SCHEDULE_HELLO = 1, /* answered, like every message, with a schedule_answer */
	SCHEDULE_TENANT =
		2, /* new or changed; the descriptor of a new tenant's directory comes with it */
	SCHEDULE_REMOVE = 3,   /* an unknown tenant is not an error */
	SCHEDULE_COMPLETE = 4, /* all tenants have been named since HELLO */
};

struct schedule_share {
	char uuid[48]; /* of the card, NUL-terminated */
	uint32_t permille;
	uint32_t capped;	     /* 0 or 1 */
	uint32_t online;	     /* 0 or 1 */
	uint32_t priority;	     /* 0 first */
	uint32_t measured;	     /* 0 or 1 */
	int32_t correction_permille; /* -1000..1000; it applies for some seconds */
};

struct schedule_message {
	uint32_t type;
	uint32_t version;
	char key[24]; /* of the tenant, NUL-terminated */
	uint32_t card_count;
	uint32_t reserved;
	struct schedule_share shares[GPUSHARE_MAX_CARDS]; /* by the tenant's card number; only the
							     first card_count are sent */
};

struct schedule_answer {
	uint32_t version;
	int32_t error; /* errno, 0: done */
	int32_t pid;
	uint32_t tenants;
	uint32_t time_scale; /* the factor of its durations */
};

_Static_assert(sizeof(struct schedule_share) == 72, "layout");
_Static_assert(sizeof(struct schedule_message) == 40 + 72 * GPUSHARE_MAX_CARDS, "layout");

#endif
