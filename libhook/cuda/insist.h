/* SPDX-License-Identifier: Apache-2.0
 *
 * The quota has room and the card has none: somebody else has more than its part. The daemon is
 * told, which takes back what it lent and sees to who is over, and the driver is asked again until
 * it gives, for two seconds at most:
 *
 *     result = INSIST(card, bytes, REAL(cuMemAlloc_v2)(&given, bytes));
 *
 * What was reserved stays so meanwhile. The caller holds no lock that another thread needs to free
 * memory. Nobody insists on what is only lent, nor while a stream is captured: the driver may
 * refuse by then what it would have given, and that ends the capture.
 */
#ifndef GPUSHARE_INSIST_H
#define GPUSHARE_INSIST_H

#include <stdbool.h>
#include <stdint.h>

#include "filter.h"

/* Of memory that is on no card of ours: the answer is taken as it is. */
#define INSIST_ON_NOTHING UINT32_MAX

struct insist {
	unsigned card;
	uint64_t bytes;
	uint64_t until_ns; /* 0: not begun */
	uint64_t pause_ns;
};

/* Wait before the driver is asked again; false when it is not to be. */
bool insist_wait(struct insist *insist);

/* `call` is evaluated once, and then once more after each wait; the rest only if it fails. */
#define INSIST(of_card, of_bytes, call)                                                            \
	({                                                                                         \
		CUresult first_ = (call);                                                          \
		if (__builtin_expect(first_ == CUDA_ERROR_OUT_OF_MEMORY, 0))                       \
			first_ = INSIST_AGAIN(of_card, of_bytes, call);                            \
		first_;                                                                            \
	})

/* The rest of it, after an answer of no memory. */
#define INSIST_AGAIN(of_card, of_bytes, call)                                                      \
	({                                                                                         \
		CUresult answer_ = CUDA_ERROR_OUT_OF_MEMORY;                                       \
		struct insist insist_ = {.card = (of_card), .bytes = (of_bytes)};                  \
		while (answer_ == CUDA_ERROR_OUT_OF_MEMORY && insist_wait(&insist_))               \
			answer_ = (call);                                                          \
		answer_;                                                                           \
	})

#endif
