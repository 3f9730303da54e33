/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the driver in progress. While the process is locked for a checkpoint, calls wait at
 * their beginning; the lock waits until those that had begun have returned.
 */
#ifndef GPUSHARE_SIMULATOR_CALLS_H
#define GPUSHARE_SIMULATOR_CALLS_H

#include <stdbool.h>
#include <stdint.h>

/* An entry point that uses the card's state, until the end of the block. */
#define IN_CALL()                                                                                  \
	__attribute__((cleanup(call_end), unused)) const bool IN_CALL_NAME(__LINE__) = call_begin()
#define IN_CALL_NAME(line) IN_CALL_JOIN(in_call_, line)
#define IN_CALL_JOIN(name, number) name##number

/* Wait until the process is not locked; within another call, no wait. False before cuInit and in a
 * forked child, where there is nothing to count. */
bool call_begin(void);
void call_end(const bool *counted);

/* From now on, calls wait; and the end of that. */
void calls_close(void);
void calls_open(void);
/* Whether a call that began before is still in progress. */
bool calls_are_in_progress(void);

#endif
