/* SPDX-License-Identifier: Apache-2.0
 *
 * cuInit: adds the process to the tenant's. Without its quota, it gets no GPU.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "cards.h"
#include "channel/log.h"
#include "evicted.h"
#include "fork.h"
#include "mps.h"
#include "quota/process_table.h"
#include "quota/pages.h"
#include "share/gate.h"

static CUresult refuse(const char *rule, const char *why)
{
	static _Atomic bool logged;

	/* Once: frameworks call it repeatedly. */
	if (!atomic_exchange(&logged, true))
		log_always("no GPU: %s: %s. Restart the container, and run `gpushare doctor` on "
			   "the host.",
			rule, why);
	return CUDA_ERROR_SYSTEM_NOT_READY;
}

static CUresult not_ready(const char *why)
{
	return refuse("the quota of this container is unknown", why);
}

static CUresult not_client(const char *why)
{
	return refuse("this container has to use the MPS server of its card", why);
}

CUDA(cuInit, (unsigned int flags))
{
	fork_watch(); /* first, because the rest takes locks */
	const char *why = pages_open(PAGES_WRITE);
	if (why)
		return not_ready(why);
	why = mps_prepare();
	if (why)
		return not_client(why);
	cards_make_visible();
	evicted_watch(); /* a new process of an evicted tenant waits before it takes memory */
	CUresult result = REAL(cuInit)(flags);
	if (result != CUDA_SUCCESS)
		return result;
	why = mps_verify();
	if (why)
		return not_client(why);
	why = process_table_join();
	if (why)
		return not_ready(why);
	result = cards_find();
	if (result != CUDA_SUCCESS)
		return result;
	gate_watch();
	return CUDA_SUCCESS;
}
