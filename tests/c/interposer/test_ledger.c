/* SPDX-License-Identifier: Apache-2.0
 *
 * One process: what is reserved, refused and given back; and its threads.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "channel/channel.h"
#include "quota/ledger.h"
#include "quota/process_table.h"
#include "quota/usage.h"
#include "tenant.h"

static void denials_are_counted(void)
{
	tenant_reset(MIB);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 2 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, UINT64_MAX));
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, MIB));
	CHECK(process_record(0)->denied == 2);
}

static void contexts_count(void)
{
	tenant_reset(100 * MIB);
	uint64_t price = 0;
	tenant_card()->context_bytes = 30 * MIB;
	CHECK(ledger_reserve_context(0, &price) && price == 30 * MIB);
	CHECK(usage_of(0) == 30 * MIB);
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 50 * MIB));
	CHECK(!ledger_reserve_context(0, &price));
	ledger_release(0, GPUSHARE_KIND_BUFFER, 50 * MIB);
	tenant_card()->context_bytes = 40 * MIB; /* the daemon has learned */
	CHECK(ledger_reserve_context(0, &price) && price == 40 * MIB);
	ledger_release_context(0, 40 * MIB);
	ledger_release_context(0, 30 * MIB);
	CHECK(usage_of(0) == 0);
}

static void measured_overhead_counts_beside_contexts(void)
{
	tenant_reset(100 * MIB);
	uint64_t price = 0;
	tenant_card()->context_bytes = 30 * MIB;
	CHECK(ledger_reserve_context(0, &price));
	tenant_card()->overhead_bytes = 15 * MIB;
	CHECK(usage_of(0) == 45 * MIB);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 56 * MIB));
	tenant_card()->overhead_bytes = 0;
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 70 * MIB));
}

/* Another process of the tenant, alive: it is only known to have a pid. */
static void another_process(void)
{
	process_record(1)->pid = (uint32_t)getppid();
	process_record(1)->starttime = 0;
	pages.status->high_water = 2;
}

static void *released;

static void release_at_refusal(unsigned card)
{
	if (released)
		ledger_release(card, GPUSHARE_KIND_POOL, 50 * MIB);
	released = NULL;
}

static void memory_known_to_be_free_is_released_before_a_refusal(void)
{
	tenant_reset(100 * MIB);
	ledger_before_refusal(release_at_refusal);
	CHECK(ledger_reserve(0, GPUSHARE_KIND_POOL, 80 * MIB));
	released = &released;
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 70 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 1));
	CHECK(process_record(0)->denied == 1);
	CHECK(process_record(0)->denied_bytes == 1);
	ledger_before_refusal(NULL);
}

/* Another process has published what it asks for and is not done. */
static void *withdraw_later(void *unused)
{
	struct timespec pause = {.tv_nsec = 20000000};

	nanosleep(&pause, NULL);
	atomic_fetch_sub(&card_usage(0)->held[1], 60 * MIB);
	atomic_fetch_sub(&card_usage(0)->pending[1], 60 * MIB);
	return unused;
}

static void undecided_bytes_are_waited_for(void)
{
	pthread_t thread;

	tenant_reset(100 * MIB);
	another_process();
	card_usage(0)->pending[1] = GPUSHARE_PENDING_BEGIN + 60 * MIB;
	card_usage(0)->held[1] = 60 * MIB;
	pthread_create(&thread, NULL, withdraw_later, NULL);
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 100 * MIB));
	pthread_join(thread, NULL);
}

static void undecided_bytes_are_never_given_twice(void)
{
	tenant_reset(100 * MIB);
	another_process();
	card_usage(0)->pending[1] = GPUSHARE_PENDING_BEGIN + 60 * MIB;
	card_usage(0)->held[1] = 60 * MIB;
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 41 * MIB)); /* after its wait */
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 40 * MIB));
}

static void *join_and_say(void *unused)
{
	pthread_cancel(pthread_self()); /* acts at the first call that waits for anything */
	process_table_join();
	channel_hello();
	return unused;
}

/* In a child, which ends where a lock stayed locked. */
static void be_cancelled(void)
{
	pthread_t thread;

	alarm(20);
	pthread_create(&thread, NULL, join_and_say, NULL);
	pthread_join(thread, NULL);
	CHECK(process_table_join() == NULL);
	channel_hello();
	channel_log(0, "still there");
}

static void a_cancelled_thread_leaves_no_lock(void)
{
	tenant_reset(16 * MIB);
	CHECK(in_child(be_cancelled) == 0);
}

static void managed_memory_may_be_in_host_memory(void)
{
	tenant_reset(100 * MIB);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_MANAGED, 101 * MIB));
	tenant_card()->managed_limit_bytes = 50 * MIB;
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 101 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_MANAGED, 150 * MIB + 1));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_MANAGED, UINT64_MAX));
	/* The first 50 MiB are not counted, what is above them is. */
	CHECK(ledger_reserve(0, GPUSHARE_KIND_MANAGED, 120 * MIB));
	CHECK(counted_bytes(0) == 70 * MIB && usage_of(0) == 120 * MIB);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 30 * MIB + 1));
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 30 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_MANAGED, 1));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_POOL, 1));
	ledger_release(0, GPUSHARE_KIND_MANAGED, 120 * MIB);
	CHECK(counted_bytes(0) == 30 * MIB);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 70 * MIB + 1));
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 70 * MIB));
	CHECK(ledger_reserve(0, GPUSHARE_KIND_MANAGED, 50 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_MANAGED, 1));
	ledger_release(0, GPUSHARE_KIND_MANAGED, 50 * MIB);
	tenant_card()->managed_limit_bytes = 0;
	CHECK(counted_bytes(0) == 100 * MIB);
}

static void *take_managed(void *taken)
{
	for (int i = 0; i < 100; i++) {
		if (ledger_reserve(0, GPUSHARE_KIND_MANAGED, MIB))
			atomic_fetch_add((_Atomic int *)taken, 1);
	}
	return NULL;
}

static void threads_share_the_host_s_part_too(void)
{
	pthread_t threads[4];
	_Atomic int taken = 0;

	tenant_reset(100 * MIB);
	tenant_card()->managed_limit_bytes = 50 * MIB;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, take_managed, &taken);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	CHECK(taken == 150);
	CHECK(counted_bytes(0) == 100 * MIB);
	ledger_release(0, GPUSHARE_KIND_MANAGED, 150 * MIB);
	tenant_card()->managed_limit_bytes = 0;
}

int main(void)
{
	tenant_create(MIB);
	TEST(managed_memory_may_be_in_host_memory);
	TEST(threads_share_the_host_s_part_too);
	TEST(denials_are_counted);
	TEST(contexts_count);
	TEST(measured_overhead_counts_beside_contexts);
	TEST(memory_known_to_be_free_is_released_before_a_refusal);
	TEST(undecided_bytes_are_waited_for);
	TEST(undecided_bytes_are_never_given_twice);
	TEST(a_cancelled_thread_leaves_no_lock);
	return 0;
}
