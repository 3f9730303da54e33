/* SPDX-License-Identifier: Apache-2.0
 *
 * The allocation fits the quota, but the driver is out of memory: another tenant uses more than its
 * quota. Report the shortfall to the daemon, which withdraws burst memory and checks the other
 * tenants, and retry the allocation for up to two seconds:
 *
 *     result = RETRY_ON_OOM(card, bytes, REAL(cuMemAlloc_v2)(&returned, bytes));
 *
 * The reservation is kept meanwhile. The caller holds no lock that another thread needs to free
 * memory. Burst memory is not retried, and nothing is retried during a stream capture: the driver
 * may by then refuse a call that it would have accepted before, and that ends the capture.
 */
#ifndef GPUSHARE_OOM_RETRY_H
#define GPUSHARE_OOM_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose.h"

/* For memory that is on none of the tenant's cards: no retry. */
#define OOM_RETRY_NO_CARD UINT32_MAX

struct oom_retry {
	unsigned card;
	uint64_t bytes;
	uint64_t until_ns; /* 0: not begun */
	uint64_t pause_ns;
};

/* Wait before the next retry; false if there is to be none. */
bool oom_retry_wait(struct oom_retry *retry);

/* Evaluates `call` once, and once more after each wait; the other arguments only if it fails. */
#define RETRY_ON_OOM(of_card, of_bytes, call)                                                      \
	({                                                                                         \
		CUresult first_ = (call);                                                          \
		if (__builtin_expect(first_ == CUDA_ERROR_OUT_OF_MEMORY, 0))                       \
			first_ = RETRY_AFTER_OOM(of_card, of_bytes, call);                         \
		first_;                                                                            \
	})

/* The retries, after a result of CUDA_ERROR_OUT_OF_MEMORY. */
#define RETRY_AFTER_OOM(of_card, of_bytes, call)                                                   \
	({                                                                                         \
		CUresult answer_ = CUDA_ERROR_OUT_OF_MEMORY;                                       \
		struct oom_retry retry_ = {.card = (of_card), .bytes = (of_bytes)};                \
		while (answer_ == CUDA_ERROR_OUT_OF_MEMORY && oom_retry_wait(&retry_))             \
			answer_ = (call);                                                          \
		answer_;                                                                           \
	})

#endif
