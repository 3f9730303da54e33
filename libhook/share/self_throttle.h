/* SPDX-License-Identifier: Apache-2.0
 *
 * The share to which a tenant limits itself while there is no scheduler: each process does so, by
 * the figures of all processes. Pure.
 */
#ifndef GPUSHARE_SELF_THROTTLE_H
#define GPUSHARE_SELF_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

/* The start of the period, and the busy time at that moment. */
struct self_throttle {
	uint64_t heartbeat_ns; /* the scheduler's last, which identifies the period; 0: there was
				  none */
	uint64_t since_ns;     /* 0: not begun */
	uint64_t busy_ns;
};

bool gate_is_stale(const struct gpushare_gate *gate, uint64_t now_ns);

/* The earliest start of work that takes `estimate_ns`, for a tenant that has used `used_ns` in
 * total (busy and pending): `now_ns` or earlier means immediately. */
uint64_t self_throttle_start_ns(struct self_throttle *throttle, const struct gpushare_gate *gate,
	uint64_t now_ns, uint64_t used_ns, uint64_t estimate_ns);

#endif
