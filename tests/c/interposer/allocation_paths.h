/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to take memory of a card, each under the name by which tests ask for it.
 */
#ifndef TEST_ALLOCATION_PATHS_H
#define TEST_ALLOCATION_PATHS_H

#include <stddef.h>

#include "cuda_driver.h"

/* What was taken through a allocation path, as that one notes it. */
struct held {
	const struct allocation_path *path; /* NULL: nothing here */
	size_t bytes;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	union {
		CUarray array;
		CUmipmappedArray mipmapped;
		CUgraphExec executable;
		CUmodule module;
		CUexternalMemory external;
	};
};

struct allocation_path {
	const char *name;
	CUresult (*take)(struct held *held); /* held->bytes of them */
	CUresult (*give)(const struct held *held);
};

extern const struct allocation_path allocation_paths[];
extern const size_t allocation_path_count;

/* NULL: there is none of that name. */
const struct allocation_path *allocation_path_named(const char *name);

/* Make the primary context of `ordinal` current: the allocation paths lead to its card. */
CUresult allocation_open(CUdevice ordinal);

/* The same context in another thread. */
CUresult allocation_enter(void);

/* Wait for the card; let pools and graphs keep nothing. */
CUresult allocation_trim(void);

#endif
