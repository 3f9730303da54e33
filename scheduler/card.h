/* SPDX-License-Identifier: Apache-2.0
 *
 * How a card's time is divided among its tenants: credit windows. Pure: no clock, file, socket or
 * log; time comes in as a number, and two cards know nothing of each other but for gangs (gang.h).
 *
 * The loop (loop.c) tells what was seen of each tenant, asks for a decision, and writes the gates
 * that it changed. docs/adr/0019 says why this is C, docs/explanation/compute-shares.md how it
 * works.
 */
#ifndef GPUSHARE_SCHEDULER_CARD_H
#define GPUSHARE_SCHEDULER_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

#define CARD_TENANTS 64

/* What a tenant is to get of the card. gpushare/daemon/policy/compute.py makes it of policies,
 * percents and weights: nothing here knows those. */
struct share {
	uint32_t permille; /* 1..1000: its part while everybody wants more than theirs */
	bool capped;	   /* never more than that */
	bool online;	   /* never waits; while it works the others do */
	uint32_t priority; /* of those that are not online: 0 comes first, strictly */
	uint32_t
		gang; /* not 0: has other cards too, under this number; its windows open together */
};

/* What a tenant's processes say together, at `at_ns`. Claims of somebody who may lie. */
struct seen {
	uint64_t at_ns;
	uint64_t busy_ns; /* sum: card time of what has ended, and since then of what is pending */
	uint64_t pending_ns; /* sum: estimate of what was not seen to end, as of progress_ns */
	uint64_t
		progress_ns; /* when of what is pending something was last seen to end, or the first
				of it began: the latest of the processes' since_ns; 0: unknown */
	uint64_t idle_ns;    /* since when nothing has been pending; 0 while something is */
	uint64_t submitted;  /* sum: so that who makes no use of a window is seen */
	uint32_t contexts;   /* processes with pending work: how many turns the hardware gives it */
	uint32_t waiting;    /* threads at the gate */
};

struct gate {
	uint32_t mode; /* enum gpushare_gate_mode */
	uint64_t in_flight_max_ns, marker_ns, wait_max_ns;
	uint32_t alone_permille, pieces_min;
	uint64_t charged_ns, windows, overruns, wanted_ns;
	bool hung;
};

struct card; /* opaque */

/* `slow` multiplies every duration that the algorithm has of its own: a simulated card in slow
 * motion; else 1. */
struct card *card_new(uint32_t slow);
void card_free(struct card *card);

/* A tenant's number on this card, or -1 where it has CARD_TENANTS. */
int card_add(struct card *card, const struct share *share, uint64_t now_ns);
void card_change(struct card *card, int tenant, const struct share *share, uint64_t now_ns);
void card_remove(struct card *card, int tenant, uint64_t now_ns);

void card_see(struct card *card, int tenant, const struct seen *seen);

/* Decide at `now_ns`, after card_see of every tenant. Returns when to look again at the latest even
 * if nobody rings; UINT64_MAX: not before somebody does. */
uint64_t card_decide(struct card *card, uint64_t now_ns);

/* The gate as it was last decided. */
const struct gate *card_gate(const struct card *card, int tenant);

#endif
