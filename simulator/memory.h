/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory as this process sees it. One range of addresses, which the host cannot access, is
 * allocated in units of 2 MiB, the granularity of the card; a second range of the same size has the
 * contents, backed by host memory only where something was written. A region is a run of units: one
 * allocation, or a block shared by small ones, or a reservation.
 */
#ifndef GPUSHARE_SIMULATOR_MEMORY_H
#define GPUSHARE_SIMULATOR_MEMORY_H

#include "driver.h"

#define UNIT_BYTES (UINT64_C(2) << 20)
#define GRANULE_BYTES 512 /* small allocations start at multiples */
#define GRANULES (UNIT_BYTES / GRANULE_BYTES)
#define SMALL_BYTES (UNIT_BYTES / 2) /* and are not larger than this */

enum region_kind {
	REGION_WHOLE,
	REGION_SHARED,	 /* one unit of small allocations */
	REGION_MANAGED,	 /* the host may access it; counted where it was prefetched to */
	REGION_RESERVED, /* addresses; memory is mapped into it (vmm.c) */
	REGION_POOL,	 /* a chunk of a pool; its parts are allocations (pool.h) */
	REGION_HOST,	 /* the same, of a pool on the host */
	REGION_OPENED,	 /* another process's, by its IPC handle (ipc.c) */
	REGION_EXTERNAL, /* a buffer of another API's memory (external.c) */
	REGION_GRAPH,	 /* of an allocation node; its pages are in the graphs' reserve */
};

/* The small allocations of a block, by granule. */
struct small {
	uint32_t live;
	uint32_t hint; /* no word before this one has room */
	uint64_t taken[GRANULES / 64];
	uint32_t bytes[GRANULES]; /* requested size, at the first granule; 0 elsewhere */
};

struct mapping;
struct chunk;
struct ipc;

struct region {
	enum region_kind kind;
	uint32_t first; /* unit */
	uint32_t units;
	CUcontext context; /* null: outlives its context (reservations) */
	CUmemoryPool pool;
	CUdeviceptr base;
	size_t bytes;	      /* requested size */
	size_t counted_bytes; /* of the card's */
	CUdevice resident;    /* of managed memory: the card */
	bool written;
	bool idle; /* of a graph: not live */
	unsigned long long id;
	struct small *small;
	struct mapping *mappings;
	struct chunk *chunk;
	CUexternalMemory external;
	struct ipc *ipc;		/* it is exported, or opened */
	struct region *previous, *next; /* of its context's or the reservations' */
};

/* One allocation: the result of looking up a pointer. */
struct extent {
	struct region *region;
	CUdeviceptr base;
	size_t bytes;
};

/* All of these take the space's latch themselves. */
CUresult memory_take(CUcontext context, size_t bytes, CUdeviceptr *pointer);
CUresult memory_give(CUdeviceptr pointer);
bool memory_find(CUdeviceptr pointer, struct extent *extent);
void memory_forget_context(CUcontext context);
bool memory_is_device(CUdeviceptr pointer);

/* The contents of [pointer, pointer + bytes), or null if that is not all of one allocation (or of
 * mapped memory). With `writing`, pages there may now have contents. */
void *memory_contents(CUdeviceptr pointer, size_t bytes, bool writing);

/* memory_find with the latch held. */
bool memory_find_held(CUdeviceptr pointer, struct extent *extent);
/* With the latch held: a region with memory of the context's card. */
CUresult region_take(
	CUcontext context, enum region_kind kind, uint64_t units, struct region **region);
void region_give(struct region *region);

/* Units without memory, for vmm.c and managed.c; the latch must be held. */
void space_take(void);
void space_drop(void);
bool space_ready(void);
struct region *region_new(enum region_kind kind, uint32_t units, uint32_t alignment_units);
void region_free(struct region *region);
struct region *region_at(CUdeviceptr pointer);
/* Call `visit` once for each region, in the order of their addresses. */
void regions_visit(void (*visit)(struct region *region, void *data), void *data);
/* Distance from a device address to its contents. */
uint64_t space_shadow(void);

/* Any, on a card or not. */
bool managed_exists(void);
CUresult managed_take(CUcontext context, size_t bytes, CUdeviceptr *pointer);
CUresult managed_give(CUdeviceptr pointer);
void managed_forget_context(CUcontext context);
CUresult pool_give(CUdeviceptr pointer);
/* With the latch held: the allocation in a pool's chunk. */
bool chunk_find(struct region *region, CUdeviceptr pointer, struct extent *extent);
CUresult graph_memory_give(CUdeviceptr pointer);

/* vmm.c: the contents of mapped memory within a reservation, like memory_contents. */
void *mapping_contents(struct region *region, CUdeviceptr pointer, size_t bytes);

#endif
