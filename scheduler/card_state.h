/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy's state of a card and its tenants, and its durations. Only for card.c and the other
 * files of the policy.
 *
 * A tenant's *virtual time* (vt) is what it was charged, divided by its share: the tenant with the
 * least is furthest behind. There is one virtual time per priority, shared by the tenants that are
 * not online. A capped tenant also has a *credit*, which its share fills and its work consumes.
 */
#ifndef GPUSHARE_SCHEDULER_CARD_STATE_H
#define GPUSHARE_SCHEDULER_CARD_STATE_H

#include "card.h"

#include <stddef.h>

#define US INT64_C(1000)
#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)
#define WHOLE 1000 /* permille of a card */

/* All for a card with a time scale of 1. */
#define ROUND_LEAST (20 * MS) /* in which every tenant has a window... */
#define ROUND_MOST (100 * MS)
#define WINDOW_LEAST (3 * MS) /* ... of this length, for the smallest share */
#define WINDOW_SHORTEST MS    /* shorter ones cost more in switches than they are worth */
#define WINDOW_LONGEST (20 * MS)
#define WINDOW_LONGEST_CAPPED (10 * MS) /* it may come twice in a row: a hundredth of a second */
#define CREDIT_LEAST (10 * MS)		/* a hundredth of a second: the most that may be saved */
#define IN_FLIGHT (2 * MS)
#define IN_FLIGHT_ONLINE MS /* what a request of an online tenant may find on the card */
#define TIMING_INTERVAL (500 * US)
#define LEAD (100 * US) /* from a decision to work on the card: decide and wake */
#define SURE MS		/* pending work of more than this may take much longer than estimated */
#define IDLE (150 * US) /* a tenant that only pauses keeps its window */
#define PATIENCE MS	/* ... or longer, if it would lose its share */
#define SLEEP (20 * MS)
#define RECLAIM (2 * MS)
#define OVERRUN (20 * MS)
#define GANG_PATIENCE (5 * MS) /* while its work on another card is awaited */
#define PROBE (100 * MS)       /* how often a stopped tenant may run, to see whether it is alive, */
#define PROBE_OPEN (10 * MS)   /* and for how long: on a busy machine, threads wake up late */
#define CONTENTION_PERIOD (20 * MS) /* in which tenants do not contend if they claim */
#define CONTENDED 600		    /* ... at most this part of it together, in thousandths, */
#define CONTENTION_AGAIN SECOND	    /* ... and have not contended for this long */
#define REACTION (40 * US)	    /* from a wake-up to an open gate: ADR 19 */
#define GUESTS 3		    /* at a time, next to the holder, */
#define GUEST_IN_FLIGHT (200 * US)  /* ... with so much work each at most */
#define BUSY 950		    /* a tenant that is busier does not pause, in thousandths */
#define BUSY_LEAST 400		    /* ... and one that is less busy is at the host */
#define LENT_LEAST (20 * MS)	    /* before it is judged whether guests are worth it */
#define LEARN_UNITS 16		    /* units of work that are measured alone, */
#define LEARN_MOST 64		    /* ... or so many, if it does not pause before, */
#define LEARN_EVERY (200 * MS)	    /* ... again after so long */
#define LEARN_AGAIN (5 * SECOND)    /* ... or so long, if it did not pause */
#define UNUSED (2 * MS)		    /* a window in which nothing is begun is lost */
#define GRACE_LEAST (2 * MS)
#define HUNG SECOND
#define UNCOUNTED (10 * SECOND) /* what an open gate may have let through */
#define TURNS_MOST 16
#define WAIT_MAX (5 * SECOND)
#define FORCED_MOST 8	       /* waiting threads of a tenant that are believed */
#define CORRECTED (5 * SECOND) /* for how long a correction applies, unless it is sent again */
#define DEBT_MAX                                                                                   \
	(60 * SECOND) /* the most that a tenant can fall behind, in virtual time or credit */
#define PENDING_MAX (10 * SECOND) /* the most that a tenant may claim */
#define ELAPSED_MAX (3600 * SECOND)
#define TIME_SCALE_MAX 10000

struct virtual_time {
	uint32_t priority, tenants;
	int64_t vt; /* that of a tenant that was always served */
};

struct tenant {
	bool used;
	struct share share;
	struct gate gate;
	struct seen seen; /* the last claims, limited to what is possible */

	uint32_t contexts;     /* the most that were busy since the last decision */
	uint64_t busy_ns;      /* of seen.busy_ns: charged up to there */
	uint64_t progress_ns;  /* when work finished, or began after nothing was pending */
	uint64_t open_ns;      /* when its gate was last open; 0: never */
	uint64_t closed_ns;    /* since when its gate is closed; 0: it is not */
	int64_t claim_ns;      /* of card time, since the last decision */
	int64_t taken_ns;      /* ... of which so much is believed, before it is charged */
	uint64_t ran_since_ns; /* the progress_ns at which ran_ns began */
	int64_t ran_ns;	       /* card time that its pending work can have had since then */
	int64_t forced;	       /* launches that were taken for forced ones */
	uint64_t forced_ns;    /* until when they are counted */
	bool ungated;	       /* it submitted while its gate was closed, and that still is */
	bool believed;	       /* its claim of pending work: charge.c */
	uint64_t corrected_ns; /* when the correction of its share was sent */

	unsigned time_index; /* of its priority's */
	int64_t vt, credit_ns;
	int64_t lag_ns;	     /* behind its priority's time when it became inactive */
	uint64_t left_ns;    /* when that was */
	uint64_t paused_ns;  /* since when it has had no work; 0: it has some */
	bool active;	     /* has work and may work: takes part in its priority's time */
	bool slept;	     /* has just come back from longer than SLEEP */
	bool stopped;	     /* got a window and did not use it */
	uint64_t stopped_ns; /* since when that is known */
	int64_t piece_ns;    /* recent length of its units of work */

	/* Of lending: lending.c. */
	bool guest;		  /* its gate is open next to the holder's */
	bool estimated;		  /* charged by its units of work, not by its claims of time */
	int64_t pause_ns;	  /* mean */
	int64_t unit_ns, turn_ns; /* of a unit of work alone, and with its part of a pause; 0:
				     unknown */
	int64_t owed_ns;	  /* not charged yet */
	uint64_t counted;	  /* of seen.submitted */
	uint64_t learned_ns;	  /* when units were measured last */
	/* The current measurement: since when, and whether it had work then, ... */
	uint64_t learn_ns, learn_busy_ns, learn_submitted;
	bool learn_busy;
	/* ... and what came of it so far. */
	int64_t busy_units, learn_units, learn_work_ns, learn_turn_ns;

	/* Of a gang: gang.c. */
	bool due;	/* it would be its turn */
	bool granted;	/* on all its cards: it may have the window */
	bool started;	/* ... and has had it */
	bool elsewhere; /* it has work on other cards */
	bool through;	/* its waiting work here is awaited by work on its other cards */

	/* Its last window. */
	uint64_t opened_ns, submitted, opened_busy_ns;
	int64_t window_ns, used_ns, opened_pending_ns;
};

struct card {
	int64_t time_scale;
	uint64_t now_ns, look_ns;
	struct tenant tenants[CARD_TENANTS];
	struct virtual_time virtual_times[CARD_TENANTS];
	int holder;   /* the tenant that has the window, or whose work is awaited after it; -1: none
		       */
	bool closing; /* the holder's gate is closed; the next window opens when its work has
			 finished */
	uint64_t closed_ns; /* since when it is */
	int64_t awaited_ns; /* ... for at most this long */

	int64_t switch_ns;
	bool lent;		       /* the window has guests, or may have: lending.c */
	int64_t lent_ns, lent_work_ns; /* for how long, and what was done meanwhile */
	uint64_t lend_after_ns;	       /* not before then */

	bool uncontended; /* all gates are open: contention.c */
	uint64_t contended_ns;
	int64_t measured_ns, claimed_ns; /* of the current period */

	/* Depends on the registered tenants. */
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

/* How long `to` is after `from`; 0 if it is not. */
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

/* Decide again at `at_ns`, or earlier. */
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
