/* SPDX-License-Identifier: Apache-2.0
 *
 * The device file: every simulated card of a machine, shared by all processes that map it.
 *
 * Its first part (header, card profiles) is written once by gpushare/simulator.py, which mirrors
 * these structures and is compared with them by tests/unit/simulator. The rest starts as zeros and
 * is the cards' state; the file is sparse. Nothing runs behind it: whoever looks at a card first
 * brings it up to the present (engine.h), holding the card's lock.
 *
 * A process may be killed at any instruction, so:
 *   - a process is alive while it holds a POSIX record lock on its own byte of the file. The kernel
 *     drops that at death, and tells the holder's pid in the reader's pid namespace (F_OFD_GETLK);
 *   - a card's lock names its owner, and is taken over from a dead one (lock.c);
 *   - memory is counted per process, the card's sum being a cache that is made again on take-over.
 * POSIX locks go when the process closes *any* descriptor of the file: nobody here ever closes one.
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
#define SIM_LAYOUT 3
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
#define SIM_FILE_BYTES (UINT64_C(128) << 20)

/* One card, as its profile says. Written before the first process maps the file. */
struct sim_profile {
	char name[96];
	uint8_t uuid[16];
	char serial[16];
	char vbios[32];
	uint64_t memory_bytes;	 /* NVML's total */
	uint64_t reserved_bytes; /* of it, held by firmware and driver: CUDA's total is the rest */
	uint64_t context_bytes;	 /* what the first context of a process takes */
	uint64_t bar1_bytes;
	uint64_t slice_ns;	    /* how long a context runs while others wait */
	uint64_t switch_preempt_ns; /* nothing runs while a busy context is switched away from, */
	uint64_t switch_drained_ns; /* or one that has run dry */
	uint64_t link_bytes_per_second;	  /* between host and card */
	uint64_t memory_bytes_per_second; /* within the card */
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
	uint32_t pci_bridge;   /* which host bridge it is below, */
	uint32_t pci_switch;   /* and which switch of that: the same number, the same thing */
	uint32_t nvlink_peers; /* bits: the cards that it is linked with, */
	uint32_t nvlinks;      /* and by how many links with each */
	uint32_t reserved[8];
};

struct sim_header {
	uint64_t magic;
	uint32_t layout;
	uint32_t card_count;
	uint32_t cuda_version;	  /* 13000: what cuDriverGetVersion says */
	uint32_t slow_motion_q16; /* 65536 = real time: every duration is multiplied by it */
	uint64_t file_bytes;
	char driver_version[80];  /* "580.95.05" */
	uint32_t instance_count;  /* after the cards, as if each was a card of its own */
	uint32_t nvml_init_error; /* what nvmlInit answers, as long as a test wants it to */
	uint64_t reserved[3];
};

/* Busy time by buckets of the clock, newest bucket `epoch`, for figures over the last second. */
struct sim_busy {
	uint64_t epoch;
	uint64_t ns[SIM_BUSY_BUCKETS];
};

/* What one process holds on one card; pieces that it keeps come on top (piece.h). */
struct sim_share {
	uint64_t used_bytes;
	uint64_t managed_bytes; /* of them, in unified memory: no process's in NVML */
	uint32_t contexts;
	uint32_t limits_unknown;	  /* it could not tell by itself which limits are its own */
	uint64_t limits[SIM_LIMITS / 64]; /* bits: the card's limits that it is under */
	struct sim_busy busy;
};

/* Memory that its maker let others have: on one process's account, the keeper's, as long as anybody
 * holds it. Free when its maker is 0. */
struct sim_piece {
	uint64_t maker;	 /* process tag, */
	uint64_t number; /* and which of that process's */
	uint64_t bytes;
	uint64_t keeper; /* place + 1 */
	uint64_t holders[SIM_PROCESSES / 64];
};

/* A memory limit that NVML set for a cgroup: what all processes in it and beneath it may hold
 * together. Free when the cgroup's inode is 0. */
struct sim_limit {
	struct cgroup cgroup;
	uint64_t soft_bytes;
	uint64_t hard_bytes;
};

/* A point in a context's work whose moment somebody wants to know. */
struct sim_marker {
	uint64_t position;
	_Atomic uint64_t reached_ns; /* 0: not yet */
};

/* A context's queue. Work is a quantity: a launch adds its duration to submitted_ns, and ends when
 * served_ns has come that far. The owner alone writes submitted_ns and adds markers; the rest is
 * written under the card's lock. */
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
	_Alignas(64) _Atomic uint64_t lock; /* process tag of the owner; 0: free */
	_Atomic uint64_t used_bytes;	    /* sum over shares and pieces */
	uint64_t clock_ns;		    /* the engine has served up to here */
	uint64_t looked_ns;		    /* the last time the dead were looked for */
	uint64_t slice_end_ns;
	uint64_t switch_end_ns;
	uint32_t running; /* index into contexts */
	uint32_t contexts_high;
	uint32_t limits_high;
	uint32_t pieces_high;
	uint32_t reserved;
	struct sim_busy busy;
	struct sim_limit limits[SIM_LIMITS];
	struct sim_piece pieces[SIM_PIECES];
	struct sim_share shares[SIM_PROCESSES];
	struct sim_context contexts[SIM_CONTEXTS];
};

/* What a test wants to go wrong on a card. It writes these itself, `allocations` last. */
struct sim_faults {
	_Atomic uint32_t allocations; /* that many calls that take memory fail, */
	_Atomic uint32_t after;	      /* once this many have not, */
	uint32_t error;		      /* with this CUresult; */
	uint32_t process;	      /* those of one pid, as it has it itself; 0: any */
	uint32_t nvml_error;	/* what NVML answers when asked about the card; 0: the truth */
	uint32_t nvml_delay_ms; /* and how long it takes */
	_Atomic uint32_t event_error; /* what asking an event answers, a CUresult; 0: the truth */
	_Atomic uint32_t nvml_hangs;  /* whatever asks NVML about the card waits until this is 0 */
	_Atomic uint32_t lost;	      /* it has fallen off the bus */
	uint32_t lies;		      /* sim_lie: what NVML says of it and cannot be */
	uint32_t xid;		      /* the last that it had, */
	_Atomic uint32_t xids;	      /* and how many it has had, which is written after it */
	uint32_t listed; /* where NVML lists it, and 1 more; 0: at its own place, all ones: nowhere
			  */
	uint32_t reserved[3];
};

enum sim_lie {
	SIM_LIE_BYTES = 1,   /* each process holds twice what the card has */
	SIM_LIE_TWICE = 2,   /* a process is listed twice, with other bytes */
	SIM_LIE_USED = 4,    /* nothing of the card is used */
	SIM_LIE_TOTAL = 8,   /* the card has half of its memory */
	SIM_LIE_UNSAID = 16, /* no lie: the bytes of processes are not available */
	SIM_LIE_PID = 32,    /* a process that cannot be there is listed */
	SIM_LIE_UUID = 64,   /* the card has another UUID */
};

/* A process's place. Its tag is generation << 16 | index + 1; the generation rises each time the
 * place is taken, so that the tag of a dead process is never a living one's. */
struct sim_process {
	_Atomic uint64_t generation;
};

struct sim_device {
	struct sim_header header;
	struct sim_profile profiles[SIM_CARDS];
	_Alignas(64) struct sim_faults faults[SIM_CARDS];
	_Alignas(4096) struct sim_process processes[SIM_PROCESSES];
	_Atomic uint32_t processes_high;
	_Alignas(4096) struct sim_card cards[SIM_CARDS];
};

_Static_assert(sizeof(struct sim_header) == 144 && sizeof(struct sim_profile) == 400, "layout");
_Static_assert(sizeof(struct sim_device) <= SIM_FILE_BYTES, "the file holds the device");

/* Why a process has no device. */
enum device_state {
	DEVICE_ABSENT, /* not attached yet, or there is none */
	DEVICE_READY,
	DEVICE_FORKED, /* attached before a fork: this is the child */
};

extern struct sim_device *device; /* null until attached */

/* Map the device file and take a place in it. Once per process; later calls answer the state. */
enum device_state device_attach(void);
/* The same, but a forked child gets a place of its own: for NVML, which holds nothing there. */
enum device_state device_attach_child(void);
enum device_state device_state(void);

static inline uint32_t tag_process(uint64_t tag)
{
	return (uint32_t)(tag & 0xffff) - 1;
}

/* This process's tag and the card's arrays' index of it. */
uint64_t process_tag(void);

/* Whether the process of `tag` is alive; *pid, where not null, becomes its pid as this process's
 * namespace knows it, 0 when that has no number for it. */
bool process_alive(uint64_t tag, int *pid);

void card_lock(struct sim_card *card);
void card_unlock(struct sim_card *card);

/* Drop what a dead process left in the place that this one has taken. */
void card_inherit(struct sim_card *card);

/* The rest under the lock. Take from the dead what they hold on this card. */
void card_reap(struct sim_card *card);
/* Add to what this process holds; false if the card is full, even after a look for the dead. */
bool card_reserve(struct sim_card *card, uint64_t bytes);
void card_release(struct sim_card *card, uint64_t bytes);
/* Whether that much more could be held, without holding it. */
bool card_has_room(struct sim_card *card, uint64_t bytes);

static inline const struct sim_profile *card_profile(const struct sim_card *card)
{
	return &device->profiles[card - device->cards];
}

/* How many of profiles and cards are in use: cards, and instances of partitioned ones. */
static inline uint32_t device_entries(void)
{
	return device->header.card_count + device->header.instance_count;
}

/* "GPU-..." or, of an instance, "MIG-...". */
void profile_uuid(const struct sim_profile *profile, char text[48]);

/* Bytes that programs can have: CUDA's total. */
static inline uint64_t card_usable_bytes(const struct sim_card *card)
{
	return card_profile(card)->memory_bytes - card_profile(card)->reserved_bytes;
}

#endif
