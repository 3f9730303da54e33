/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures in progress. Work on a captured stream does not run, and neither a wait nor an event of
 * the library may become part of the capture.
 */
#ifndef GPUSHARE_CAPTURE_H
#define GPUSHARE_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "share/gate.h"

/* In any thread. The count is never less than the real number; if a program destroys a stream
 * during a capture it stays too high until the process exits, and the driver is then queried for
 * each stream. */
static inline bool captures_are_open(void)
{
	return __builtin_expect(
		atomic_load_explicit(&gate_line.captures, memory_order_acquire) > 0, 0);
}

#endif
