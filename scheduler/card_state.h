/* SPDX-License-Identifier: Apache-2.0
 *
 * What the policy keeps of a card and its tenants, and its durations. Inside card.c and the files
 * beside it only.
 *
 * A tenant's *virtual time* (vt) is what it was charged, divided by its share: who has the least is
 * furthest behind. It is kept by level: the tenants that are not online and have one priority. A
 * capped tenant has a *credit* besides, which its share fills and its work empties.
 */
#ifndef GPUSHARE_SCHEDULER_CARD_STATE_H
#define GPUSHARE_SCHEDULER_CARD_STATE_H

#include "card.h"

#include <stddef.h>

#define US INT64_C(1000)
#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)
#define WHOLE 1000 /* permille of a card */

/* All of a card that is not slowed down. */
#define ROUND_LEAST (20 * MS) /* in which everybody has a window... */
#define ROUND_MOST (100 * MS)
#define WINDOW_LEAST (3 * MS) /* ... of this length, for the smallest share */
#define WINDOW_SHORTEST MS    /* shorter ones cost more in switches than they are worth */
#define WINDOW_LONGEST (20 * MS)
#define WINDOW_LONGEST_CAPPED (10 * MS) /* it may come twice in a row: a second's hundredth */
#define CREDIT_LEAST (10 * MS)		/* a hundredth of a second: what may be kept for later */
#define IN_FLIGHT (2 * MS)
#define IN_FLIGHT_ONLINE MS /* what a request of an online tenant may find on the card */
#define MARKER (500 * US)
#define LEAD (100 * US) /* from a decision to work on the card: decide and wake */
#define SURE MS		/* pending work of more than that may take much longer than was estimated */
#define IDLE (150 * US) /* a tenant that only pauses keeps its window */
#define PATIENCE MS	/* ... or longer, where it would lose its share */
#define SLEEP (20 * MS)
#define RECLAIM (2 * MS)
#define OVERRUN (20 * MS)
#define GANG_PATIENCE (5 * MS) /* while its work on another card is awaited */
#define PROBE (100 * MS)       /* how often one that is stopped is let, to see whether it lives, */
#define PROBE_OPEN (10 * MS)   /* and how long: on a busy machine threads wake up late */
#define UNUSED (2 * MS)	       /* a window in which nothing is begun is lost */
#define GRACE_LEAST (2 * MS)
#define HUNG SECOND
#define UNCOUNTED (10 * SECOND) /* what a gate that was open may have let through */
#define TURNS_MOST 16
#define WAIT_MAX (5 * SECOND)
#define DEBT_MAX (60 * SECOND)	  /* how far anybody can fall behind, in virtual time or credit */
#define PENDING_MAX (10 * SECOND) /* what a tenant may say; more is not believed */
#define ELAPSED_MAX (3600 * SECOND)
#define SLOW_MAX 10000

struct level {
	uint32_t priority, tenants;
	int64_t vt; /* where a tenant that was always served would be */
};

struct tenant {
	bool used;
	struct share share;
	struct gate gate;
	struct seen seen; /* what was said last, with what cannot be taken out */

	uint32_t contexts;    /* the most that were busy since the last decision */
	uint64_t busy_ns;     /* of seen.busy_ns: charged until there */
	uint64_t progress_ns; /* when something ended, or began after nothing was pending */
	uint64_t open_ns;     /* when its gate was open last; 0: never */
	int64_t taken_ns;     /* since the last decision, before it is charged */

	unsigned level;
	int64_t vt, credit_ns;
	int64_t lag_ns;	     /* behind its level when it became inactive */
	uint64_t left_ns;    /* when that was */
	uint64_t paused_ns;  /* since when it was seen without work; 0: it has some */
	bool active;	     /* has work and may work: takes part in its level's time */
	bool slept;	     /* has just come back from longer than SLEEP */
	bool stopped;	     /* got a window and made nothing of it */
	uint64_t stopped_ns; /* since when that is known */
	int64_t piece_ns;    /* how long its pieces are, lately */

	/* Of a gang: gang.c. */
	bool due;	/* it would be its turn */
	bool granted;	/* on all its cards: it may have the window */
	bool started;	/* ... and has had it */
	bool elsewhere; /* it has work on others of its cards */
	bool through;	/* what it waits with here, work on others of its cards waits for */

	/* Its last window. */
	uint64_t opened_ns, submitted, opened_busy_ns;
	int64_t window_ns, used_ns;
};

struct card {
	int64_t slow;
	uint64_t now_ns, look_ns;
	struct tenant tenants[CARD_TENANTS];
	struct level levels[CARD_TENANTS];
	int holder;   /* whose window it is, or whose work is awaited after it; -1: nobody's */
	bool closing; /* the holder's gate is shut; the next window opens when its work has ended */
	uint64_t closed_ns; /* since when it is */
	int64_t awaited_ns; /* ... for so long at most */

	/* By who is registered. */
	int registered;
	bool has_online;
	int64_t round_ns;
};

#define FOR_EACH_TENANT(card, tenant)                                                              \
	for (struct tenant *tenant = (card)->tenants; tenant < (card)->tenants + CARD_TENANTS;     \
		tenant++)                                                                          \
		if (tenant->used)

static inline int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* How long `to` is after `from`; 0 where it is not. */
static inline int64_t elapsed(uint64_t from_ns, uint64_t to_ns)
{
	const uint64_t passed = to_ns > from_ns ? to_ns - from_ns : 0;
	return passed < (uint64_t)ELAPSED_MAX ? (int64_t)passed : ELAPSED_MAX;
}

/* `ns` of the card, in virtual time. */
static inline int64_t virtual_of(const struct tenant *tenant, int64_t ns)
{
	return ns * WHOLE / tenant->share.permille;
}

/* Look again at `at_ns`, or earlier. */
static inline void look_at(struct card *card, uint64_t at_ns)
{
	if (at_ns < card->look_ns)
		card->look_ns = at_ns;
}

static inline void look_in(struct card *card, int64_t ns)
{
	look_at(card, card->now_ns + (uint64_t)most(ns, 0));
}

static inline struct tenant *holder_of(struct card *card)
{
	return card->holder < 0 ? NULL : &card->tenants[card->holder];
}

static inline bool is_busy(const struct tenant *tenant)
{
	return tenant->seen.contexts > 0;
}

static inline bool has_demand(const struct tenant *tenant)
{
	return is_busy(tenant) || tenant->seen.waiting > 0;
}

#endif
