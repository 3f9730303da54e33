/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to start work on a card: every function that does, with a call of it.
 */
#ifndef TEST_STARTS_H
#define TEST_STARTS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_work.h"
#include "lookups.h"

struct start {
	const char *symbol;
	bool here; /* the simulator has it */
	CUresult (*call)(void);
};

extern const struct start starts[];
extern const size_t start_count;

/* Find the driver, and make on its first device what the calls need. */
CUresult starts_open(finder *find);

/* The context in a further thread. */
CUresult starts_enter(void);

/* How long kernels and graphs made from now on take. */
CUresult starts_set_duration(uint64_t duration_ns);

CUresult starts_synchronize(void);

#endif
