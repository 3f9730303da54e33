/* SPDX-License-Identifier: Apache-2.0
 *
 * The device file: every simulated card of a machine, shared by all processes that map it.
 *
 * gpushare/simulator mirrors these structures (tests/c/simulator/test_create.py compares them) and
 * writes the first part (header, card profiles) once. The rest starts as zeros and is the cards'
 * state; the file is sparse. No process runs behind it: a process that accesses a card first brings
 * it up to the present (engine.h), with the card's lock held.
 *
 * A process may be killed at any instruction, so:
 *   - a process is alive while it holds a POSIX record lock on its own byte of the file. The kernel
 *     drops it at death, and reports the holder's PID in the reader's namespace (F_OFD_GETLK);
 *   - a card's lock names its owner, and is taken over from a dead one (lock.c);
 *   - memory is counted per process; the card's sum is a cache that is recomputed on take-over.
 * POSIX locks end when the process closes *any* descriptor of the file: this code never closes one.
 *
 * Lock order: at most one card's lock at a time, and no process-local lock is taken under it.
 */
#ifndef GPUSHARE_SIMULATOR_DEVICE_H
#define GPUSHARE_SIMULATOR_DEVICE_H

#include "cgroup.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_MAGIC UINT64_C(0x31306d6973757067) /* "gpusim01", little endian */
#define SIM_LAYOUT 7
#define SIM_DEVICE_ENV "GPUSHARE_SIM_DEVICE"
#define SIM_DEVICE_PATH "/dev/gpushare-sim"

#define SIM_CARDS 16
#define SIM_PROCESSES 1024
#define SIM_CONTEXTS 512 /* of one card, over all processes */
#define SIM_MARKERS 512	 /* events of one context that are recorded and not yet reached */
#define SIM_LIMITS 512	 /* cgroups with a memory limit on one card */
#define SIM_PIECES 4096	 /* of one card's memory that other processes may hold too */
#define SIM_BUSY_BUCKETS 11
#define SIM_BUSY_BUCKET_NS UINT64_C(100000000)
#define SIM_PERIODS 64 /* NVML's samples of who uses a card, */
#define SIM_PERIOD_NS UINT64_C(200000000)
#define SIM_FILE_BYTES (UINT64_C(128) << 20)

/* What NVML tells of a card whose memory is the machine's. */
enum sim_unified {
	SIM_OWN_MEMORY,
	SIM_UNIFIED_PROCESSES, /* what each process has, and no totals */
	SIM_UNIFIED_NOTHING,
	SIM_UNIFIED_MACHINE /* the machine's totals */
};

/* One card, as in its profile. Written before the first process maps the file. */
struct sim_profile {
	char name[96];
	uint8_t uuid[16];
	char serial[16];
	char vbios[32];
	uint64_t memory_bytes;	 /* NVML's total */
	uint64_t reserved_bytes; /* of it, held by firmware and driver: CUDA's total is the rest */
	uint64_t context_bytes;	 /* what the first context of a process takes */
	uint64_t bar1_bytes;
	uint64_t slice_ns;		/* how long a context runs while others wait */
	uint64_t switch_preempt_ns;	/* nothing runs during a switch away from a busy context, */
	uint64_t switch_drained_ns;	/* or from one that has run out of work */
	uint64_t link_bytes_per_second; /* between host and card */
	uint64_t memory_bytes_per_second;     /* within the card */
	uint64_t checkpoint_bytes_per_second; /* to the host, and back; 0: in no time */
	uint32_t compute_major;
	uint32_t compute_minor;
	uint32_t multiprocessors;
	uint32_t cores_per_multiprocessor;
	uint32_t threads_per_multiprocessor;
	uint32_t shared_bytes_per_multiprocessor;
	uint32_t shared_bytes_per_block_optin;
	uint32_t l2_bytes;
	uint32_t memory_bus_bits;
	uint32_t clock_sm_mhz;
	uint32_t clock_memory_mhz;
	uint32_t power_idle_milliwatts;
	uint32_t power_limit_milliwatts;
	uint32_t temperature_idle_celsius;
	uint32_t temperature_busy_celsius;
	uint32_t temperature_slowdown_celsius;
	uint32_t temperature_shutdown_celsius;
	uint32_t pci_bus;
	uint32_t pci_device_id; /* device << 16 | vendor */
	uint32_t pci_subsystem_id;
	uint32_t pcie_generation;
	uint32_t pcie_lanes;
	uint32_t nvml_architecture;
	uint32_t nvml_brand;
	uint32_t mig_capable;
	uint32_t parent; /* of an instance: its card's index + 1; of a card 0 */
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint32_t slices; /* of the card's seven */
	uint32_t numa_node;
	uint32_t pci_bridge;   /* the host bridge that it is below, */
	uint32_t pci_switch;   /* and the switch below that: the same number is the same bridge or
				  switch */
	uint32_t nvlink_peers; /* bits: the cards that it is linked with, */
	uint32_t nvlinks;      /* and the number of links with each */
	uint32_t launch_bytes; /* of its own memory, the driver reads and writes that much for each
				  launch */
	uint32_t unified;      /* enum sim_unified */
	uint32_t reserved[6];
};

struct sim_header {
	uint64_t magic;
	uint32_t layout;
	uint32_t card_count;
	uint32_t cuda_version;	 /* 13000: as returned by cuDriverGetVersion */
	uint32_t time_scale_q16; /* 65536 = real time: every duration is multiplied by it */
	uint64_t file_bytes;
	char driver_version[80];  /* "580.95.05" */
	uint32_t instance_count;  /* after the cards, as if each were a card of its own */
	uint32_t nvml_init_error; /* the result of nvmlInit, as long as a test sets it */
	uint64_t reserved[3];
};

/* Busy time by buckets of the clock, newest bucket `epoch`, for figures over the last second. */
struct sim_busy {
	uint64_t epoch;
	uint64_t ns[SIM_BUSY_BUCKETS];
};

/* How busy a card was in a period of its clock, all of it counted for the process that had the card
 * last (seen on an H100: simulator/README.md). */
struct sim_period {
	uint64_t epoch;
	uint32_t busy_ns;
	uint32_t process; /* its place */
};

/* The memory that one process holds on one card, without the pieces that it keeps (piece.h). */
struct sim_share {
	uint64_t used_bytes;
	uint64_t managed_bytes; /* of these, managed memory, which NVML attributes to no process */
	uint32_t contexts;
	uint32_t limits_unknown;	  /* it could not determine which limits apply to it */
	uint64_t limits[SIM_LIMITS / 64]; /* bits: the card's limits that apply to it */
	uint64_t mps_client;
	uint64_t evicted_bytes; /* of a checkpointed process: what it held here, */
	uint64_t evicted_contexts;
};

/* Memory that its creator shared with others: on one process's account, the keeper's, as long as
 * any process holds it. Unused if its creator is 0. */
struct sim_piece {
	uint64_t maker;	 /* process tag, */
	uint64_t number; /* and the number of that process's piece */
	uint64_t bytes;
	uint64_t keeper; /* place + 1 */
	uint64_t holders[SIM_PROCESSES / 64];
};

/* A memory limit that NVML set for a cgroup: what all processes in it and beneath it may hold
 * together. Unused if the cgroup's inode is 0. */
struct sim_limit {
	struct cgroup cgroup;
	uint64_t soft_bytes;
	uint64_t hard_bytes;
};

/* A point in a context's work whose time is wanted. */
struct sim_marker {
	uint64_t position;
	_Atomic uint64_t reached_ns; /* 0: not yet */
};

/* A context's queue. Work is a quantity: a launch adds its duration to submitted_ns, and ends when
 * served_ns has reached that value. Only the owner writes submitted_ns and adds markers; the rest
 * is written under the card's lock. */
struct sim_context {
	_Atomic uint64_t owner; /* process tag; 0: free */
	_Atomic uint64_t submitted_ns;
	_Atomic uint64_t served_ns;
	uint64_t reserved;
	_Atomic uint64_t markers_added;
	_Atomic uint64_t markers_reached;
	struct sim_marker markers[SIM_MARKERS];
};

struct sim_card {
	/* Whole pages, so that a process can map another card in its place. */
	_Alignas(4096) _Atomic uint64_t lock; /* process tag of the owner; 0: free */
	_Atomic uint64_t used_bytes;	      /* sum over shares and pieces */
	uint64_t clock_ns;		      /* the engine has served up to here */
	uint64_t looked_ns;		      /* the last check for dead processes */
	uint64_t slice_end_ns;
	uint64_t switch_end_ns;
	uint32_t running; /* index into contexts */
	uint32_t contexts_high;
	uint32_t limits_high;
	uint32_t pieces_high;
	uint32_t reserved;
	struct sim_busy busy;
	struct sim_period periods[SIM_PERIODS];
	struct sim_limit limits[SIM_LIMITS];
	struct sim_piece pieces[SIM_PIECES];
	struct sim_share shares[SIM_PROCESSES];
	struct sim_context contexts[SIM_CONTEXTS];
};

/* Faults that a test injects into a card. The test writes these itself, `allocations` last. */
struct sim_faults {
	_Atomic uint32_t allocations; /* this many calls that take memory fail, */
	_Atomic uint32_t after;	      /* once this many have succeeded, */
	uint32_t error;		      /* with this CUresult; */
	uint32_t process;	/* those of one PID, in that process's own namespace; 0: any */
	uint32_t nvml_error;	/* NVML's result for queries about the card; 0: the real one */
	uint32_t nvml_delay_ms; /* and how long it takes */
	_Atomic uint32_t event_error; /* the result of event queries, a CUresult; 0: the real one */
	_Atomic uint32_t nvml_hangs;  /* queries about the card to NVML block until this is 0 */
	_Atomic uint32_t lost;	      /* it has fallen off the bus */
	uint32_t lies;		      /* sim_lie: NVML's impossible values for it */
	uint32_t xid;		      /* the last XID, */
	_Atomic uint32_t xids;	      /* and the number of XIDs, which is written after it */
	uint32_t listed; /* its position in NVML's list, plus 1; 0: its own place, all ones: not
			    listed */
	_Atomic uint32_t compute_mode; /* NVML's and CUDA's number: 0 is the default */
	_Atomic uint32_t
		persistence_off; /* no persistence mode: restore needs a caller with cuInit */
	/* Checkpoints of processes on the card: so many of this operation (enum
	 * checkpoint_operation) have the effect (enum sim_checkpoint_fault), */
	_Atomic uint32_t checkpoint_faults;
	uint32_t checkpoint_operation;
	uint32_t checkpoint_effect;
	uint32_t checkpoint_error; /* and this CUresult */
	uint32_t encoder_percent;  /* how busy the first process on the card keeps its encoder, */
	uint32_t decoder_percent;  /* and its decoder */
	uint32_t reserved[11];
};

enum sim_lie {
	SIM_LIE_BYTES = 1,   /* each process holds twice what the card has */
	SIM_LIE_TWICE = 2,   /* a process is listed twice, with different bytes */
	SIM_LIE_USED = 4,    /* nothing of the card is used */
	SIM_LIE_TOTAL = 8,   /* the card has half of its memory */
	SIM_LIE_UNSAID = 16, /* no lie: the bytes of processes are not available */
	SIM_LIE_PID = 32,    /* a process that cannot exist is listed */
	SIM_LIE_UUID = 64,   /* the card has another UUID */
};

/* What an injected fault does to a process that is checkpointed. */
enum sim_checkpoint_fault {
	SIM_CHECKPOINT_REFUSES = 0, /* the operation fails, the state remains */
	SIM_CHECKPOINT_FAILS = 1,   /* it fails, and so has the process, for ever */
	SIM_CHECKPOINT_HANGS = 2,   /* until the test ends the faults */
	SIM_CHECKPOINT_CRASHES = 3, /* the process gets SIGSEGV */
};

/* How a process is checkpointed by another one, or by itself (checkpoint.h). A caller takes it by
 * its own tag, writes a request, and raises `requests`; a thread of the process answers. */
struct sim_checkpoint {
	_Atomic uint32_t serving; /* the thread runs */
	_Atomic uint32_t state;	  /* CUprocessState */
	_Atomic uint64_t caller;
	_Atomic uint32_t requests; /* futex */
	_Atomic uint32_t replies;  /* futex */
	uint32_t operation;	   /* enum checkpoint_operation */
	uint32_t timeout_ms;	   /* of a lock; 0: none */
	uint32_t caller_started;   /* the caller has called cuInit */
	uint32_t pairs;
	uint32_t result; /* CUresult */
	uint32_t reserved;
	uint8_t from[SIM_CARDS][16]; /* UUIDs: the cards that are left, and those taken for them */
	uint8_t to[SIM_CARDS][16];
};

/* A process's slot. Its tag is generation << 16 | index + 1; the generation rises each time the
 * slot is taken, so that the tag of a dead process is never a living one's. */
struct sim_process {
	_Atomic uint64_t generation;
};

struct sim_device {
	struct sim_header header;
	struct sim_profile profiles[SIM_CARDS];
	_Alignas(64) struct sim_faults faults[SIM_CARDS];
	_Alignas(4096) struct sim_process processes[SIM_PROCESSES];
	_Atomic uint32_t processes_high;
	_Alignas(64) struct sim_checkpoint checkpoints[SIM_PROCESSES];
	_Alignas(4096) struct sim_card cards[SIM_CARDS];
};

_Static_assert(sizeof(struct sim_header) == 144 && sizeof(struct sim_profile) == 408, "layout");
_Static_assert(sizeof(struct sim_device) <= SIM_FILE_BYTES, "the file holds the device");

/* Why a process has no device. */
enum device_state {
	DEVICE_ABSENT, /* not attached yet, or there is none */
	DEVICE_READY,
	DEVICE_FORKED, /* attached before a fork: this is the child */
};

extern struct sim_device *device; /* null until attached */

/* Map the device file and take a slot in it. Once per process; later calls return the state. */
enum device_state device_attach(void);
/* The same, but a forked child gets a slot of its own: for NVML, which holds nothing there. */
enum device_state device_attach_child(void);
enum device_state device_state(void);
/* The driver's CUDA version, also in a process that is not attached; UINT32_MAX without a device.
 */
uint32_t device_cuda_version(void);

static inline uint32_t tag_process(uint64_t tag)
{
	return (uint32_t)(tag & 0xffff) - 1;
}

/* This process's tag, and its index in the card's arrays. */
uint64_t process_tag(void);

/* Whether the process of `tag` is alive; *pid, if not null, becomes its PID in this process's
 * namespace, 0 if it has none there. */
bool process_alive(uint64_t tag, int *pid);

void card_lock(struct sim_card *card);
void card_unlock(struct sim_card *card);

/* GPUSHARE_SIM_TRACE: a line about a call of `symbol`, on stderr or to the file of that path. */
void trace(const char *symbol, const char *what);

/* Clear what a dead process left in the slot that this one has taken. */
void card_inherit(struct sim_card *card);

/* The rest under the lock. Release what dead processes hold on this card. */
void card_reap(struct sim_card *card);
/* Add to what this process holds; false if the card is full, even after a check for dead processes,
 * and without managed memory, which the driver moves to the host then. */
bool card_reserve(struct sim_card *card, uint64_t bytes);
void card_release(struct sim_card *card, uint64_t bytes);
/* Whether that much more could be held, with all memory staying where it is, without taking it. */
bool card_has_room(struct sim_card *card, uint64_t bytes);

/* The card that is mapped as card `index` of the array is the one `card_shifts[index]` after it,
 * once this process was moved. */
extern _Atomic int32_t card_shifts[SIM_CARDS];

/* The card's number on the machine, and the reverse. */
static inline uint32_t card_place(const struct sim_card *card)
{
	const uint32_t index = (uint32_t)(card - device->cards);

	return (uint32_t)((int32_t)index + card_shifts[index]);
}
struct sim_card *card_at(uint32_t place);

/* Map the card `places[i]` of the machine as card i, of all: a permutation. False, with nothing
 * changed, if the kernel refuses. No other thread may use any card. */
bool cards_map(const uint32_t places[SIM_CARDS]);

static inline const struct sim_profile *card_profile(const struct sim_card *card)
{
	return &device->profiles[card_place(card)];
}

/* How many profiles and cards are in use: cards, and instances of partitioned ones. */
static inline uint32_t device_entries(void)
{
	return device->header.card_count + device->header.instance_count;
}

#define SIM_INSTANCES 7 /* of any card so far: MIG user guide */

/* Whether this process may open the device node of a card, or an instance's capabilities too. */
bool device_has_node(uint32_t entry);

/* "GPU-..." or, of an instance, "MIG-...". */
void profile_uuid(const struct sim_profile *profile, char text[48]);

/* Bytes that programs can have: CUDA's total. */
static inline uint64_t card_usable_bytes(const struct sim_card *card)
{
	return card_profile(card)->memory_bytes - card_profile(card)->reserved_bytes;
}

#endif
