/* SPDX-License-Identifier: Apache-2.0
 *
 * Before a fork, every lock of the library that is held only briefly is taken, in the library's
 * lock order, so that no other thread is in the middle of a change when the child's memory is
 * copied.
 */
#include "fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backing.h"
#include "channel/channel.h"
#include "charge.h"
#include "context.h"
#include "evicted.h"
#include "external.h"
#include "graph_memory.h"
#include "ipc.h"
#include "physical_refs.h"
#include "pool.h"
#include "quota/process_table.h"
#include "quota/page_lock.h"
#include "quota/pages.h"
#include "share/gate.h"

static void before(void)
{
	physical_refs_before_fork();
	ipc_before_fork();
	external_before_fork();
	backings_before_fork();
	gate_before_fork();
	page_lock_before_fork();
	pages_before_fork();
	channel_before_fork();
}

static void after_in_parent(void)
{
	channel_after_fork_in_parent();
	pages_after_fork();
	page_lock_after_fork_in_parent();
	gate_after_fork_in_parent();
	backings_after_fork_in_parent();
	external_after_fork_in_parent();
	ipc_after_fork_in_parent();
	physical_refs_after_fork_in_parent();
}

static void after_in_child(void)
{
	evicted_after_fork_in_child();
	process_table_forget();
	allocations_forget(&buffers);
	channel_after_fork_in_child();
	pages_after_fork();
	page_lock_after_fork_in_child();
	gate_after_fork_in_child();
	backings_after_fork_in_child();
	pools_after_fork_in_child();
	graph_memory_after_fork_in_child();
	external_after_fork_in_child();
	ipc_after_fork_in_child();
	physical_refs_after_fork_in_child();
	contexts_after_fork_in_child();
}

void fork_watch(void)
{
	static _Atomic bool watching;

	if (!atomic_exchange(&watching, true))
		pthread_atfork(before, after_in_parent, after_in_child);
}
