/* SPDX-License-Identifier: Apache-2.0
 *
 * The share that a tenant keeps to by itself while no scheduler is there: each of its processes,
 * by what all of them say. Pure.
 */
#ifndef GPUSHARE_ALONE_H
#define GPUSHARE_ALONE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpushare_abi.h"

/* Since when, and from which sum of busy time on. */
struct alone {
	uint64_t heartbeat_ns; /* the scheduler's last, by which it is known; 0: there was none */
	uint64_t since_ns;     /* 0: not begun */
	uint64_t busy_ns;
};

bool gate_is_stale(const struct gpushare_gate *gate, uint64_t now_ns);

/* When `estimate_ns` more may begin, for tenants that have used `used_ns` in all (busy and
 * pending): `now_ns` or earlier is at once. */
uint64_t alone_when(struct alone *alone, const struct gpushare_gate *gate, uint64_t now_ns,
	uint64_t used_ns, uint64_t estimate_ns);

#endif
