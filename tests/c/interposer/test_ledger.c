/* SPDX-License-Identifier: Apache-2.0
 *
 * One process: what is reserved, refused and given back; and its threads.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "channel/channel.h"
#include "quota/ledger.h"
#include "quota/pages.h"
#include "quota/process_table.h"
#include "tenant.h"

static void denials_are_counted(void)
{
	tenant_reset(MIB);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 2 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, UINT64_MAX));
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, MIB));
	CHECK(process_record(0)->denied == 2);
}

/* Another process of the tenant, alive: it is only known to have a pid. */
static void another_process(void)
{
	process_record(1)->pid = (uint32_t)getppid();
	process_record(1)->starttime = 0;
	pages.status->high_water = 2;
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
	channel_log(0, "joined");
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
	channel_log(0, "still there");
}

static void a_cancelled_thread_leaves_no_lock(void)
{
	tenant_reset(16 * MIB);
	CHECK(in_child(be_cancelled) == 0);
}

int main(void)
{
	tenant_create(MIB);
	TEST(denials_are_counted);
	TEST(undecided_bytes_are_waited_for);
	TEST(undecided_bytes_are_never_given_twice);
	TEST(a_cancelled_thread_leaves_no_lock);
	return 0;
}
