/* SPDX-License-Identifier: Apache-2.0
 *
 * How a card's time is divided among its tenants: credit windows. Pure: no clock, file, socket or
 * log; time is passed in as a number, and cards are independent except for gangs (gang.h).
 *
 * The loop (loop.c) passes the observations of each tenant, asks for a decision, and writes the
 * gates that changed. docs/adr/0019 explains why this is C, docs/explanation/compute-shares.md how
 * it works.
 */
#ifndef GPUSHARE_SCHEDULER_CARD_H
#define GPUSHARE_SCHEDULER_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

#define CARD_TENANTS 64

/* A tenant's share of the card. gpushare/daemon/policy.py computes it from policies,
 * percentages and weights, which are unknown here. */
struct share {
	uint32_t permille; /* 1..1000: its part while all tenants want more than theirs */
	bool capped;	   /* never more than that */
	bool online;	   /* never waits; while it works, the others wait */
	uint32_t priority; /* among tenants that are not online: 0 is strictly first */
	uint32_t gang; /* not 0: the tenant has other cards too, under this number; its windows open
			  together */
	bool measured; /* the driver measures this card's tenants, so that their charges can be
			  corrected */
	int32_t correction_permille; /* of the card: by how much more than its gate counts the
					driver measures of it; negative: by how much less, because
					of other tenants */
};

/* The combined figures of a tenant's processes at `at_ns`. They are claims, and may be false. */
struct seen {
	uint64_t at_ns;
	uint64_t busy_ns; /* sum: card time of finished work, plus that of pending work up to now */
	uint64_t pending_ns;  /* sum: estimate of unfinished work, as of progress_ns */
	uint64_t progress_ns; /* when pending work last made progress: something finished, or the
				 first of it began; the latest of the processes' since_ns; 0:
				 unknown */
	uint64_t idle_ns;     /* since when nothing has been pending; 0 while something is */
	uint64_t submitted;   /* sum: shows whether a tenant uses its window */
	uint32_t contexts; /* processes with pending work: how many time slices the hardware gives
			      it */
	uint32_t waiting;  /* threads waiting at the gate */
};

struct gate {
	uint32_t mode; /* enum gpushare_gate_mode */
	uint64_t in_flight_max_ns, timing_interval_ns, wait_max_ns;
	uint32_t self_throttle_permille, pieces_min;
	uint64_t charged_ns, windows, overruns, demand_ns;
	uint64_t claimed_ns; /* card time that the tenant claims, whatever others claim */
	uint64_t ungated_ns; /* part of it, with work that was submitted at a closed gate */
	bool hung;
};

struct card; /* opaque */

/* `time_scale` multiplies every duration of the algorithm, for a simulated card with scaled time;
 * otherwise 1. The card takes `switch_ns`, without that factor, from one tenant's work to
 * another's. */
struct card *card_new(uint32_t time_scale, uint32_t switch_ns);
void card_free(struct card *card);

/* A tenant's number on this card, or -1 if it already has CARD_TENANTS. */
int card_add(struct card *card, const struct share *share, uint64_t now_ns);
void card_change(struct card *card, int tenant, const struct share *share, uint64_t now_ns);
void card_remove(struct card *card, int tenant, uint64_t now_ns);

void card_see(struct card *card, int tenant, const struct seen *seen);

/* Decide at `now_ns`, after card_see of every tenant. Returns the latest time of the next decision
 * even without a wake-up; UINT64_MAX: none until a wake-up. */
uint64_t card_decide(struct card *card, uint64_t now_ns);

/* The gate as last decided. */
const struct gate *card_gate(const struct card *card, int tenant);

#endif
