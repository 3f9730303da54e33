/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways to start work on a card: every function that does, with a call of it.
 */
#ifndef TEST_STARTS_H
#define TEST_STARTS_H

#include <stddef.h>

#include "cuda_work.h"
#include "lookups.h"

enum start_kind { START_ON_STREAM, START_DEFAULT, START_NOT_HERE };

struct start {
	const char *symbol;
	enum start_kind kind;
	CUresult (*call)(void);
};

extern const struct start starts[];
extern const size_t start_count;

/* Find the driver, and make on its first device what the calls need. */
CUresult starts_open(finder *find);

/* The context in a further thread. */
CUresult starts_enter(void);

/* Begin a capture of the stream that calls are given, and end it: what was captured is dropped. */
CUresult starts_begin_capture(void);
CUresult starts_end_capture(void);

/* How long kernels and graphs made from now on take. */
CUresult starts_set_duration(uint64_t duration_ns);

CUresult starts_synchronize(void);

#endif
