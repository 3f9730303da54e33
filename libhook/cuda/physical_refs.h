/* SPDX-License-Identifier: Apache-2.0
 *
 * References to physical memory: which pieces of it this process refers to. The driver retains a
 * piece, and so its charge lasts, for as long as a handle, a mapping or a multicast bind refers to
 * it.
 */
#ifndef GPUSHARE_PHYSICAL_REFS_H
#define GPUSHARE_PHYSICAL_REFS_H

#include "interpose.h"
#include "quota/allocations.h"

enum physical_class {
	PHYSICAL_OWN,	    /* charged here */
	PHYSICAL_EXPORTED,  /* charged here, and other processes may refer to it */
	PHYSICAL_IMPORTED,  /* charged to its creator; its size is known once it is mapped */
	PHYSICAL_MULTICAST, /* no memory, but an object that memory is bound to */
};

#pragma GCC visibility push(hidden)
/* By handle, and by address; the owner of an entry is the number of its piece. */
extern struct allocations physical_handles;
extern struct allocations physical_mappings;
#pragma GCC visibility pop

/* One thread at a time changes the references, and never while the driver is called. All functions
 * below need this lock. */
void physical_refs_lock(void);
void physical_refs_unlock(void);

/* Add a piece without references; return its number, never 0. */
uint64_t physical_new(
	enum physical_class class, enum gpushare_kind kind, unsigned card, uint64_t bytes);

/* Add or remove a reference; number 0 is ignored. */
void physical_hold(uint64_t number);
void physical_drop(uint64_t number);

/* Add a reference by a handle; `new` if the driver has just created the handle. */
void physical_handle_new(CUmemGenericAllocationHandle handle, uint64_t number);
void physical_handle_add(CUmemGenericAllocationHandle handle, uint64_t number);

/* The piece of a handle; 0 if it is not recorded. */
uint64_t physical_of_handle(CUmemGenericAllocationHandle handle);

/* Like physical_hold, for the piece that is mapped at this address; 0 if it is not recorded. */
uint64_t physical_hold_mapped(CUdeviceptr pointer);

/* Other processes may refer to it from now on. */
void physical_export(uint64_t number);

/* Its size is at least `bytes`: it was mapped up to there. */
void physical_reaches(uint64_t number, uint64_t bytes);

/* The number's memory, recorded as imported, is a multicast object. */
void physical_is_multicast(uint64_t number);

/* Add an entry, or put back a changed one. A table that cannot grow loses it; its charge then lasts
 * until the process exits. */
void physical_put(struct allocations *table, const struct allocation *entry);

void physical_refs_before_fork(void);
void physical_refs_after_fork_in_parent(void);
void physical_refs_after_fork_in_child(void);

#endif
