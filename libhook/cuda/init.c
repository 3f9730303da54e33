/* SPDX-License-Identifier: Apache-2.0
 *
 * cuInit: adds the process to the tenant's. Without its quota, it gets no GPU.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "cards.h"
#include "channel/channel.h"
#include "channel/log.h"
#include "evicted.h"
#include "fork.h"
#include "quota/process_table.h"
#include "quota/pages.h"
#include "share/gate.h"

static CUresult not_ready(const char *why)
{
	static _Atomic bool logged;

	/* Once: frameworks call it repeatedly. */
	if (!atomic_exchange(&logged, true))
		log_always("no GPU: the quota of this container is unknown: %s. Restart the "
			   "container, "
			   "and run `gpushare doctor` on the host.",
			why);
	return CUDA_ERROR_SYSTEM_NOT_READY;
}

CUDA(cuInit, (unsigned int flags))
{
	fork_watch(); /* first, because the rest takes locks */
	const char *why = pages_open(PAGES_WRITE);
	if (why)
		return not_ready(why);
	cards_make_visible();
	evicted_watch(); /* a new process of an evicted tenant waits before it takes memory */
	CUresult result = REAL(cuInit)(flags);
	if (result != CUDA_SUCCESS)
		return result;
	why = process_table_join();
	if (why)
		return not_ready(why);
	result = cards_find();
	if (result != CUDA_SUCCESS)
		return result;
	gate_watch();
	channel_hello();
	return CUDA_SUCCESS;
}
