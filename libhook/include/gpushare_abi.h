/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between the daemon and the libraries in a tenant's process: paths, page layouts,
 * messages. gpushare/abi.py mirrors it for Python; tests/c/test_abi_parity.py compiles this
 * header and compares every number, so changing only one of the two fails the checks.
 *
 * A tenant has two page files on a small tmpfs of its own:
 *   grant   written by the daemon, mapped read-only by the tenant: the quota.
 *   status  written by the tenant and not trusted: the usage. The daemon reads it with pread and
 *           never maps it, because a tenant may truncate it.
 * Each field has one writer. Both files are sparse; a card that is not granted takes no memory.
 */
#ifndef GPUSHARE_ABI_H
#define GPUSHARE_ABI_H

#include <stdatomic.h>
#include <stdint.h>

#define GPUSHARE_ABI_VERSION 3
#define GPUSHARE_ABI_MAGIC UINT64_C(0x6572616873757067) /* "gpushare", little endian */

/* Where our files are in a container, and in the mount namespace of a process of the host. Fixed,
 * so that no environment variable can redirect a tenant: the libraries are built for one of the
 * two. */
#define GPUSHARE_CONTAINER_DIR "/.gpushare"
#define GPUSHARE_HOST_DIR "/opt/gpushare"
#ifdef GPUSHARE_FOR_HOST
#define GPUSHARE_DIR GPUSHARE_HOST_DIR
#else
#define GPUSHARE_DIR GPUSHARE_CONTAINER_DIR
#endif
#ifndef GPUSHARE_DRIVER_DIR /* tests that must not touch /opt override it */
#define GPUSHARE_DRIVER_DIR GPUSHARE_DIR "/driver"
#endif
#define GPUSHARE_TENANT_DIR GPUSHARE_DIR "/tenant"
#define GPUSHARE_GRANT_NAME "grant"
#define GPUSHARE_STATUS_NAME "status"
#define GPUSHARE_SOCKET_NAME "socket"
/* A FIFO. A byte in it makes the scheduler read the tenant's status page. */
#define GPUSHARE_WAKEUP_NAME "wakeup"
/* There if `mps` of the grant header is 1: lines NAME=VALUE, the variables with which each process
 * of the tenant becomes a client of the MPS server, and its limits there. */
#define GPUSHARE_MPS_NAME "mps"
/* The directory where the pipe directory of that server is mounted. */
#define GPUSHARE_PIPES_NAME "pipes"
/* Read only by the host's library, and only if GPUSHARE_TENANT_DIR does not exist: a rootless
 * `gpushare run`. */
#define GPUSHARE_TENANT_DIR_ENV "GPUSHARE_TENANT_DIR"

#define GPUSHARE_PAGE_BYTES 4096
#define GPUSHARE_MAX_CARDS 16	    /* per tenant */
#define GPUSHARE_MAX_PROCESSES 1024 /* of one tenant that use the driver at the same time */

/* ---- grant ------------------------------------------------------------------------------- */

enum gpushare_gate_mode {
	GPUSHARE_GATE_OPEN = 0,	   /* work passes and is not counted */
	GPUSHARE_GATE_METERED = 1, /* work passes; submitted and finished work is counted */
	GPUSHARE_GATE_WINDOW = 2, /* like METERED, while no more than in_flight_max_ns is pending */
	GPUSHARE_GATE_CLOSED = 3, /* work waits */
};

/* Age of a heartbeat, in real time, after which a process at the gate uses
 * `self_throttle_permille`. */
#define GPUSHARE_GATE_STALE_NS UINT64_C(100000000)

/* The launch gate of one card. Launches read the first cache line. */
struct gpushare_gate {
	_Atomic uint32_t mode;	/* enum gpushare_gate_mode */
	_Atomic uint32_t epoch; /* futex word: incremented after each change of the gate */
	/* In GATE_WINDOW: pending_ns of all processes together stays below this, except that one
	 * unit of work (two if pieces_min is 2) may always be pending. */
	_Atomic uint64_t in_flight_max_ns;
	_Atomic uint64_t timing_interval_ns; /* estimated work between two timing events, at most */
	/* A launch that has waited this long proceeds and is counted as forced: a deadlock between
	 * tenants is worse than a late window. */
	_Atomic uint64_t wait_max_ns;
	_Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC; 0: there has been no scheduler */
	_Atomic uint64_t busy_ns;      /* sum of the processes' busy_ns at that heartbeat */
	/* The share of the card, in thousandths, to which each process limits the tenant while the
	 * heartbeat is old. 0: no limit, as if the gate were open (online tenants, and a tenant
	 * alone on its card). */
	_Atomic uint32_t self_throttle_permille;
	_Atomic uint32_t pieces_min; /* 1 or 2 */
	_Atomic uint64_t reserved;

	/* Results, for the daemon and for the tenant's own view. */
	_Atomic uint64_t charged_ns; /* card time since the tenant was added */
	_Atomic uint64_t windows;    /* opened */
	_Atomic uint64_t overruns;   /* windows whose work did not finish in time */
	_Atomic uint64_t demand_ns;  /* time during which work was pending or waiting */
	_Atomic uint32_t hung;	     /* 1: pending work seems never to finish */
	_Atomic uint32_t reserved2;
	_Atomic uint64_t claimed_ns; /* card time that the tenant's processes claim, together at
					most the time that has passed */
	_Atomic uint64_t ungated_ns; /* part of it, with work that was submitted while this gate was
				       closed */
	_Atomic uint64_t reserved3;
};

struct gpushare_grant_header { /* page 0; writer: daemon */
	uint64_t magic;
	uint32_t abi_version;
	uint32_t card_count;
	_Atomic uint32_t generation;   /* futex word: incremented after each change */
	_Atomic uint32_t unbound;      /* 1: gpushared does not know the tenant's process yet */
	_Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the daemon's last sample */
	char key[24];		       /* of the tenant, NUL-terminated */
	/* Futex word. Not 0: the tenant's GPU memory is, or is about to be, in host memory. A call
	 * of the driver sends GPUSHARE_MESSAGE_RESTORE and waits until it is 0. */
	_Atomic uint32_t evicted;
	/* 1: each of its processes has to be a client of gpushared's MPS server. */
	_Atomic uint32_t mps;
	/* Of a tenant with one card: its UUID when the tenant was made, NUL-terminated. gpushared
	 * writes it into CUDA_VISIBLE_DEVICES. */
	char first_uuid[48];
};

struct gpushare_grant_card { /* page 1 + n; n is the tenant's card number, 0 upwards */
	/* writer: daemon */
	char uuid[48];			/* "GPU-....", NUL-terminated, as reported by NVML */
	_Atomic uint64_t quota_bytes;	/* the quota, shown as "total" */
	_Atomic uint64_t limit_bytes;	/* the quota, or more while the tenant may burst */
	_Atomic uint64_t context_bytes; /* measured size of one context on this card */
	_Atomic uint64_t
		overhead_bytes;		/* the driver's figure for this tenant minus the ledger's */
	_Atomic uint32_t cores_percent; /* 1..100; 0: not requested */
	_Atomic uint32_t utilization_percent; /* the tenant's own, over the last second */
	uint32_t unused[2];
	/* So much managed memory does not count against the quota, because host memory is reserved
	 * for it (oversubscribe: host). */
	_Atomic uint64_t managed_limit_bytes;
	uint32_t reserved[6];

	_Alignas(64) struct gpushare_gate gate; /* writer: scheduler */
};

#define GPUSHARE_GRANT_BYTES (GPUSHARE_PAGE_BYTES * (1 + GPUSHARE_MAX_CARDS))
#define GPUSHARE_GRANT_CARD_OFFSET(n) (GPUSHARE_PAGE_BYTES * (1 + (n)))

/* ---- status ------------------------------------------------------------------------------ */

/* A process of the tenant. Its number indexes the arrays of every card. The process is dead when
 * its lock (an OFD lock on the first byte of this record) is free *and* its (pid, starttime) no
 * longer exists or no longer maps this file (exec): a program may have closed the descriptor
 * (closefrom), and a PID may have been reused. Only the daemon, or the holder of the page's lock
 * (an OFD lock on byte 0 of the file), clears a record. */
struct gpushare_process {
	_Atomic uint32_t pid; /* in the process's own PID namespace; 0: unused */
	/* Not 0: it has exported or imported memory, or is about to. A checkpoint would give it a
	 * copy of its own. */
	_Atomic uint32_t shares;
	_Atomic uint64_t starttime;    /* /proc/PID/stat field 22, clock ticks since boot */
	_Atomic uint64_t denied;       /* allocations refused because of the quota */
	_Atomic uint64_t denied_bytes; /* size of the last of them */
};

/* The purpose of memory. `gpushare why` shows it; the quota treats all kinds alike. */
enum gpushare_kind {
	GPUSHARE_KIND_BUFFER = 0,  /* linear memory; not recorded: held minus all other kinds */
	GPUSHARE_KIND_CONTEXT = 1, /* charged at the size of a context on this card */
	GPUSHARE_KIND_MANAGED = 2, /* not in the driver's figure for a process */
	GPUSHARE_KIND_POOL = 3, /* everything that memory pools hold, including what they retain */
	GPUSHARE_KIND_PHYSICAL = 4, /* virtual memory management */
	GPUSHARE_KIND_ARRAY = 5,
	GPUSHARE_KIND_GRAPH = 6,  /* everything that the device's graph memory holds */
	GPUSHARE_KIND_MODULE = 7, /* globals, constants, code */
	GPUSHARE_KIND_CONTEXT_LIMIT =
		8, /* heap, stack and FIFO above their initial sizes (cuCtxSetLimit) */
	GPUSHARE_KIND_EXTERNAL = 9, /* imported from another interface */
	GPUSHARE_KINDS = 10,
};

/* Details of what one process holds on one card. Informational only. */
struct gpushare_detail {
	_Atomic uint64_t bytes[GPUSHARE_KINDS];
	_Atomic uint64_t pool_kept_bytes; /* of POOL: free, for the pool's next allocation */
	_Atomic uint32_t contexts;
	uint32_t reserved;
	uint64_t reserved2[4];
};

/* The lower bits of `pending` are bytes. The upper bits count the reservations that were ever
 * begun, so that a reader of two values can tell whether one began in between. */
#define GPUSHARE_PENDING_BITS 44
#define GPUSHARE_PENDING_BEGIN (UINT64_C(1) << GPUSHARE_PENDING_BITS)
#define GPUSHARE_PENDING_BYTES (GPUSHARE_PENDING_BEGIN - 1)

/* The memory that all processes hold on one card, by process number; a process writes only its own
 * elements. These are arrays because each allocation sums `held` over all processes.
 *
 * A process first publishes a reservation, in `pending` and then in `held`, and then decides it by
 * the sum of all `held`: of two that race, at least one sees both. A granted reservation is removed
 * from `pending`; a withdrawn one is removed from `held` and then from `pending`. A refusal is
 * final only under the page's lock, and only for a sum during which nothing was pending. */
struct gpushare_usage {
	_Alignas(64) _Atomic uint64_t held[GPUSHARE_MAX_PROCESSES];
	_Atomic uint64_t pending[GPUSHARE_MAX_PROCESSES];
	/* Memory that several processes map is counted in the `held` of its creator. */
	_Atomic uint64_t
		exported[GPUSHARE_MAX_PROCESSES]; /* part of held that other processes may map */
	_Atomic uint64_t
		imported[GPUSHARE_MAX_PROCESSES]; /* memory of other processes that this one maps */
	struct gpushare_detail detail[GPUSHARE_MAX_PROCESSES];
};

/* The work of one process on one card. That process writes it, under a lock of its own. It
 * increments `begun` before a change and sets `done` to the same value afterwards; a reader that
 * sees two different values reads again. Times are CLOCK_MONOTONIC. Work that was launched through
 * an open gate is not included. */
struct gpushare_work {
	_Atomic uint32_t done;
	_Atomic uint32_t waiting; /* threads that wait at the gate */
	_Atomic uint64_t
		busy_ns; /* card time of finished work, including other tenants' time slices */
	_Atomic uint64_t since_ns;   /* busy_ns covers the time up to here */
	_Atomic uint64_t pending_ns; /* estimated time of work that is not known to have finished */
	_Atomic uint64_t submitted;  /* units of work: kernels, graphs, copies */
	_Atomic uint64_t ended;	     /* of these; busy while it is lower */
	_Atomic uint64_t
		throttled_ns;	 /* time that threads waited at the gate, added when a wait ends */
	_Atomic uint32_t forced; /* launches that waited for wait_max_ns */
	_Atomic uint32_t begun;
};

struct gpushare_status_header { /* page 0 */
	uint64_t magic;
	uint32_t abi_version;
	_Atomic uint32_t high_water; /* highest process number ever used, plus one */
	_Atomic uint32_t sharing; /* not 0 after a process has imported memory: the third term below
				     counts */
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

/* Memory that a tenant uses on a card, in bytes:
 *   sum(held) + overhead_bytes + max(0, max(imported) - sum(exported))
 *     - min(sum(managed), managed_limit_bytes)
 * The third term is memory that outlived its creator: a process maps more memory of others than all
 * living processes have exported. In the last, `managed` is `bytes` of KIND_MANAGED. A process adds
 * to `held` before it adds to that, and takes from that before it takes from `held`, so that the
 * sum is never too small. */

/* ---- messages: process -> daemon on the tenant's own SOCK_SEQPACKET socket, one way --------- */

enum gpushare_message_type {
	GPUSHARE_MESSAGE_LOG = 2, /* text */
	GPUSHARE_MESSAGE_SHORTFALL =
		3, /* struct gpushare_shortfall: the driver has less memory than the quota */
	GPUSHARE_MESSAGE_RESTORE = 4, /* no text: a call of the driver waits for `evicted` */
};

#define GPUSHARE_MESSAGE_TEXT_BYTES 1000

struct gpushare_message {
	uint32_t type;
	uint32_t level; /* of LOG: syslog's 3 err, 4 warning, 6 info, 7 debug */
	uint32_t pid;	/* in the process's own namespace */
	uint32_t text_bytes;
	char text[GPUSHARE_MESSAGE_TEXT_BYTES]; /* only text_bytes of it are sent */
};

/* Begins like struct gpushare_message. A daemon that does not know the message closes the
 * connection and the process reconnects, so this is not a new layout. */
struct gpushare_shortfall {
	uint32_t type;
	uint32_t card; /* the tenant's number for it */
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
_Static_assert(sizeof(struct gpushare_shortfall) == 24, "layout");
_Static_assert(sizeof(struct gpushare_usage) == GPUSHARE_STATUS_CARD_BYTES, "layout");

#endif
