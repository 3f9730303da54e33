/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon and the libraries in a tenant's process agree on: paths, page layouts, messages.
 * gpushare/abi.py mirrors it for Python; tests/unit/test_abi_parity.py compiles this header and
 * compares every figure, so a change here without one there fails the checks.
 *
 * A tenant has two pages-files on a small tmpfs of its own:
 *   grant   the daemon writes, the tenant maps a read-only mount: what was promised.
 *   status  the tenant writes and is not trusted: what is used. The daemon preads it, never maps it
 *           (a tenant may truncate it).
 * Each field has one writer. Both files are sparse; a card that is not granted costs no memory.
 */
#ifndef GPUSHARE_ABI_H
#define GPUSHARE_ABI_H

#include <stdatomic.h>
#include <stdint.h>

#define GPUSHARE_ABI_VERSION 3
#define GPUSHARE_ABI_MAGIC UINT64_C(0x6572616873757067) /* "gpushare", little endian */

/* Inside a container; fixed, so that no environment variable can point a tenant elsewhere. */
#ifndef GPUSHARE_DRIVER_DIR /* tests that must not touch /opt build with another */
#define GPUSHARE_DRIVER_DIR "/opt/gpushare/driver"
#endif
#define GPUSHARE_TENANT_DIR "/opt/gpushare/tenant"
#define GPUSHARE_GRANT_NAME "grant"
#define GPUSHARE_STATUS_NAME "status"
#define GPUSHARE_SOCKET_NAME "socket"
/* A FIFO: a byte in it makes the scheduler look at the tenant's status page. */
#define GPUSHARE_BELL_NAME "bell"
/* Read only where GPUSHARE_TENANT_DIR does not exist: a rootless `gpushare run`. */
#define GPUSHARE_TENANT_DIR_ENV "GPUSHARE_TENANT_DIR"

#define GPUSHARE_PAGE_BYTES 4096
#define GPUSHARE_MAX_CARDS 16	    /* per tenant */
#define GPUSHARE_MAX_PROCESSES 1024 /* of one tenant, holding the driver at the same time */

/* ---- grant ------------------------------------------------------------------------------- */

enum gpushare_gate_mode {
	GPUSHARE_GATE_OPEN = 0,	   /* passes, and nothing is counted */
	GPUSHARE_GATE_METERED = 1, /* passes; what is submitted and what ended is counted */
	GPUSHARE_GATE_WINDOW =
		2, /* as metered, as long as no more than in_flight_max_ns is pending */
	GPUSHARE_GATE_CLOSED = 3, /* waits */
};

/* How old a heartbeat may be before who waits at a gate acts on `alone_permille`, in real time. */
#define GPUSHARE_GATE_STALE_NS UINT64_C(100000000)

/* A gate of one card. The first cache line is read by launches. */
struct gpushare_gate {
	_Atomic uint32_t mode;	/* enum gpushare_gate_mode */
	_Atomic uint32_t epoch; /* futex word: one more after each change of what stands here */
	/* WINDOW: pending_ns of all processes together stays below this, except that one piece of
	 * work (two where pieces_min is 2) may always be pending. */
	_Atomic uint64_t in_flight_max_ns;
	_Atomic uint64_t marker_ns; /* so much estimated work at most between two markers */
	/* A launch that waited so long goes ahead and is counted as forced: a deadlock between
	 * tenants is worse than a late window. */
	_Atomic uint64_t wait_max_ns;
	_Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC; 0: no scheduler has been here */
	_Atomic uint64_t busy_ns;      /* the sum of the processes' busy_ns at that heartbeat */
	/* What the tenant may take of the card while the heartbeat is old, each process by itself:
	 * thousandths; 0: as if the gate was open (online tenants, and who has the card alone). */
	_Atomic uint32_t alone_permille;
	_Atomic uint32_t pieces_min; /* 1 or 2 */
	_Atomic uint64_t reserved;

	/* What became of it, for the daemon and for the tenant's own view. */
	_Atomic uint64_t charged_ns; /* card time since the tenant was added */
	_Atomic uint64_t windows;    /* opened */
	_Atomic uint64_t overruns;   /* windows whose work did not end in time */
	_Atomic uint64_t wanted_ns;  /* time in which work was pending or waiting */
	_Atomic uint32_t hung;	     /* 1: work is pending that seems never to end */
	_Atomic uint32_t reserved2[7];
};

struct gpushare_grant_header { /* page 0; writer: daemon */
	uint64_t magic;
	uint32_t abi_version;
	uint32_t card_count;
	_Atomic uint32_t generation; /* futex word: one more after each change */
	uint32_t reserved;
	_Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the daemon's last look */
	char key[24];		       /* of the tenant, NUL-terminated */
};

struct gpushare_grant_card { /* page 1 + n; n is the tenant's card number, 0 upwards */
	/* writer: daemon */
	char uuid[48];			     /* "GPU-....", NUL-terminated, as NVML says it */
	_Atomic uint64_t memory_bytes;	     /* the quota: what "total" shows */
	_Atomic uint64_t memory_limit_bytes; /* what may be used now: more while some is lent */
	_Atomic uint64_t context_bytes;	     /* what one context takes on this card, measured */
	_Atomic uint64_t overhead_bytes; /* driver's figure for this tenant beyond the ledger's */
	_Atomic uint32_t cores_percent;	 /* 1..100; 0: none asked */
	_Atomic uint32_t utilisation_percent; /* the tenant's own, last second */
	uint32_t reserved[10];

	_Alignas(64) struct gpushare_gate gate; /* writer: scheduler */
};

#define GPUSHARE_GRANT_BYTES (GPUSHARE_PAGE_BYTES * (1 + GPUSHARE_MAX_CARDS))
#define GPUSHARE_GRANT_CARD_OFFSET(n) (GPUSHARE_PAGE_BYTES * (1 + (n)))

/* ---- status ------------------------------------------------------------------------------ */

/* A process of the tenant. Its number indexes the arrays of every card. It is dead when its lock
 * (an OFD lock on the first byte of this record) is free *and* its (pid, starttime) is gone, or
 * maps this file no more (exec): a program may have closed the descriptor (closefrom), and a pid
 * may have been given again. Only the daemon, or who holds the page's lock (an OFD lock on byte 0
 * of the file), clears a record. */
struct gpushare_process {
	_Atomic uint32_t pid; /* in the process's own pid namespace; 0: free */
	uint32_t reserved;
	_Atomic uint64_t starttime;    /* /proc/PID/stat field 22, clock ticks since boot */
	_Atomic uint64_t denied;       /* allocations refused for the quota */
	_Atomic uint64_t denied_bytes; /* what the last of them asked for */
};

/* What memory was taken for. `gpushare why` shows it; the quota counts all kinds alike. */
enum gpushare_kind {
	GPUSHARE_KIND_BUFFER = 0,   /* linear memory; never noted: it is what the others leave */
	GPUSHARE_KIND_CONTEXT = 1,  /* at the price of a context on this card */
	GPUSHARE_KIND_MANAGED = 2,  /* in no figure that the driver has of a process */
	GPUSHARE_KIND_POOL = 3,	    /* all that memory pools hold, what they keep for later too */
	GPUSHARE_KIND_PHYSICAL = 4, /* virtual memory management */
	GPUSHARE_KIND_ARRAY = 5,
	GPUSHARE_KIND_GRAPH = 6,    /* all that the device's memory for graphs holds */
	GPUSHARE_KIND_MODULE = 7,   /* globals, constants, code */
	GPUSHARE_KIND_LIMIT = 8,    /* heap, stack and FIFO that cuCtxSetLimit made larger */
	GPUSHARE_KIND_EXTERNAL = 9, /* imported from another interface */
	GPUSHARE_KINDS = 10,
};

/* Beside what one process holds on one card; nothing here decides. */
struct gpushare_detail {
	_Atomic uint64_t bytes[GPUSHARE_KINDS];
	_Atomic uint64_t pool_kept_bytes; /* of POOL: free, for the pool's next allocation */
	_Atomic uint32_t contexts;
	uint32_t reserved;
	uint64_t reserved2[4];
};

/* Of `pending`: the lower bits are bytes, the upper count the reservations ever begun, so that
 * whoever reads a word twice knows whether one began in between. */
#define GPUSHARE_PENDING_BITS 44
#define GPUSHARE_PENDING_BEGIN (UINT64_C(1) << GPUSHARE_PENDING_BITS)
#define GPUSHARE_PENDING_BYTES (GPUSHARE_PENDING_BEGIN - 1)

/* What all processes hold on one card, by process number; a process writes its own elements only.
 * Arrays, for each allocation sums `held` over all of them.
 *
 * A reservation is first published, in `pending` and then in `held`, and decided by the sum of all
 * `held`: of two that race at least one sees both. Granted, it is taken from `pending`; withdrawn,
 * from `held` and then from `pending`. Refusals are final only under the page's lock, and only of a
 * sum during which nothing was pending. */
struct gpushare_usage {
	_Alignas(64) _Atomic uint64_t held[GPUSHARE_MAX_PROCESSES];
	_Atomic uint64_t pending[GPUSHARE_MAX_PROCESSES];
	/* Memory that several processes map is counted in the `held` of who made it. */
	_Atomic uint64_t exported[GPUSHARE_MAX_PROCESSES]; /* of held: others may map it */
	_Atomic uint64_t imported[GPUSHARE_MAX_PROCESSES]; /* others' that this one maps */
	struct gpushare_detail detail[GPUSHARE_MAX_PROCESSES];
};

/* The work of one process on one card; that process writes it, under a lock of its own. `begun`
 * goes up before a change and `done` becomes the same after it: who reads two different figures
 * reads again. Times are CLOCK_MONOTONIC. What the process had launched through an open gate is in
 * none of it. */
struct gpushare_work {
	_Atomic uint32_t done;
	_Atomic uint32_t waiting;  /* threads that wait at the gate */
	_Atomic uint64_t busy_ns;  /* card time of what has ended; other tenants' slices included */
	_Atomic uint64_t since_ns; /* busy_ns counts up to here: since then busy, or idle */
	_Atomic uint64_t pending_ns;   /* estimate of what was submitted and was not seen to end */
	_Atomic uint64_t submitted;    /* pieces: kernels, graphs, copies */
	_Atomic uint64_t ended;	       /* of them; busy as long as it is less */
	_Atomic uint64_t throttled_ns; /* threads' waits at the gate, added up when they end */
	_Atomic uint32_t forced;       /* launches that waited wait_max_ns */
	_Atomic uint32_t begun;
};

struct gpushare_status_header { /* page 0 */
	uint64_t magic;
	uint32_t abi_version;
	_Atomic uint32_t high_water; /* one more than the highest process number ever used */
	_Atomic uint32_t sharing; /* not 0 once a process imported: the third term below counts */
	uint32_t reserved;
};

#define GPUSHARE_STATUS_PROCESS_OFFSET GPUSHARE_PAGE_BYTES
#define GPUSHARE_STATUS_USAGE_OFFSET (GPUSHARE_STATUS_PROCESS_OFFSET + GPUSHARE_MAX_PROCESSES * 32)
#define GPUSHARE_STATUS_CARD_BYTES (GPUSHARE_MAX_PROCESSES * (4 * 8 + 128))
#define GPUSHARE_STATUS_WORK_OFFSET                                                                \
	(GPUSHARE_STATUS_USAGE_OFFSET + GPUSHARE_MAX_CARDS * GPUSHARE_STATUS_CARD_BYTES)
#define GPUSHARE_STATUS_WORK_BYTES (GPUSHARE_MAX_PROCESSES * 64) /* of one card */
#define GPUSHARE_STATUS_BYTES                                                                      \
	(GPUSHARE_STATUS_WORK_OFFSET + GPUSHARE_MAX_CARDS * GPUSHARE_STATUS_WORK_BYTES)

/* Memory a tenant uses on a card, in bytes:
 *   sum(held) + overhead_bytes + max(0, max(imported) - sum(exported))
 * The third term is what outlived who made it: a process maps more of others' memory than all
 * living ones together answer for.                                                              */

/* ---- messages: process -> daemon on the tenant's own SOCK_SEQPACKET socket, one way --------- */

enum gpushare_message_type {
	GPUSHARE_MESSAGE_HELLO =
		1,		  /* pid holds the driver now (SO_PEERCRED tells the host's pid) */
	GPUSHARE_MESSAGE_LOG = 2, /* text */
	GPUSHARE_MESSAGE_LACKS =
		3, /* struct gpushare_lack: the driver has not got what was promised */
};

#define GPUSHARE_MESSAGE_TEXT_BYTES 1000

struct gpushare_message {
	uint32_t type;
	uint32_t level; /* of LOG: syslog's 3 err, 4 warning, 6 info, 7 debug */
	uint32_t pid;	/* in the process's own namespace */
	uint32_t text_bytes;
	char text[GPUSHARE_MESSAGE_TEXT_BYTES]; /* sent only as far as text_bytes */
};

/* As struct gpushare_message begins. A daemon that does not know it ends the connection, and the
 * process makes another: no new layout. */
struct gpushare_lack {
	uint32_t type;
	uint32_t card; /* the tenant's number of it */
	uint32_t pid;
	uint32_t rest_bytes;   /* 8 */
	uint64_t wanted_bytes; /* and reserved */
};

_Static_assert(sizeof(struct gpushare_grant_header) <= GPUSHARE_PAGE_BYTES, "one page");
_Static_assert(sizeof(struct gpushare_grant_card) <= GPUSHARE_PAGE_BYTES, "one page");
_Static_assert(sizeof(struct gpushare_process) == 32, "layout");
_Static_assert(sizeof(struct gpushare_detail) == 128, "layout");
_Static_assert(sizeof(struct gpushare_gate) == 128, "two lines");
_Static_assert(sizeof(struct gpushare_work) == 64, "one line");
_Static_assert(sizeof(struct gpushare_lack) == 24, "layout");
_Static_assert(sizeof(struct gpushare_usage) == GPUSHARE_STATUS_CARD_BYTES, "layout");

#endif
