/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to take memory of a card, each under the name by which tests ask for it.
 */
#ifndef TEST_DOORS_H
#define TEST_DOORS_H

#include <stddef.h>

#include "cuda_driver.h"
#include "ways.h"

/* The driver, once doors_open has found it. */
extern struct functions {
#define FUNCTION(function) __typeof__(&function) function;
#include "doors.inc"
#undef FUNCTION
} cu;

/* What was taken through a door, as that one notes it. */
struct held {
	const struct door *door; /* NULL: nothing here */
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

struct door {
	const char *name;
	CUresult (*take)(struct held *held); /* held->bytes of them */
	CUresult (*give)(const struct held *held);
};

extern const struct door doors[];
extern const size_t door_count;

/* NULL: there is none of that name. */
const struct door *door_named(const char *name);

/* Find the driver and make the primary context of `ordinal` current; the doors lead to its card. */
CUresult doors_open(finder *find, CUdevice ordinal);

/* The same context in another thread. */
CUresult doors_enter(void);

/* Wait for the card; let pools and graphs keep nothing. */
CUresult doors_trim(void);

#endif
