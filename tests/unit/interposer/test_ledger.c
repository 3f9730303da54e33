/* SPDX-License-Identifier: Apache-2.0
 *
 * One process: what is reserved, refused and given back; and its threads.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "quota/ledger.h"
#include "quota/usage.h"
#include "tenant.h"

static void last_byte(void)
{
	tenant_reset(100 * MIB);
	CHECK(ledger_reserve(0, 99 * MIB));
	CHECK(!ledger_reserve(0, MIB + 1));
	CHECK(ledger_reserve(0, MIB));
	CHECK(!ledger_reserve(0, 1));
	CHECK(tenant_used_bytes() == 100 * MIB);
	ledger_release(0, MIB);
	CHECK(!ledger_reserve(0, MIB + 1));
	CHECK(ledger_reserve(0, MIB));
}

static void denials_are_counted(void)
{
	tenant_reset(MIB);
	CHECK(!ledger_reserve(0, 2 * MIB));
	CHECK(!ledger_reserve(0, UINT64_MAX));
	CHECK(ledger_reserve(0, MIB));
	CHECK(process_record(0)->denied == 2);
}

static void contexts_count(void)
{
	tenant_reset(100 * MIB);
	tenant_card()->context_bytes = 30 * MIB;
	CHECK(ledger_reserve_context(0));
	CHECK(usage_of(0).bytes == 30 * MIB);
	CHECK(ledger_reserve(0, 50 * MIB));
	CHECK(!ledger_reserve_context(0));
	ledger_release(0, 50 * MIB);
	CHECK(ledger_reserve_context(0));
	ledger_release_context(0);
	ledger_release_context(0);
	CHECK(usage_of(0).bytes == 0);
}

static void measured_overhead_counts_instead_of_contexts(void)
{
	tenant_reset(100 * MIB);
	tenant_card()->context_bytes = 30 * MIB;
	CHECK(ledger_reserve_context(0));
	tenant_card()->overhead_bytes = 45 * MIB;
	CHECK(usage_of(0).bytes == 45 * MIB);
	CHECK(!ledger_reserve(0, 56 * MIB));
	tenant_card()->overhead_bytes = 10 * MIB;
	CHECK(ledger_reserve(0, 70 * MIB));
}

static void resize(void)
{
	tenant_reset(100 * MIB);
	CHECK(ledger_reserve(0, 80 * MIB));
	tenant_set_memory(50 * MIB);
	CHECK(!ledger_reserve(0, 1));
	CHECK(free_bytes(quota_bytes(0), usage_of(0).bytes) == 0);
	tenant_set_memory(120 * MIB);
	CHECK(ledger_reserve(0, 40 * MIB));
	CHECK(!ledger_reserve(0, 1));
}

/* Another process has published what it asks for and is not done. */
static void *withdraw_later(void *slot)
{
	struct timespec pause = {.tv_nsec = 20000000};

	nanosleep(&pause, NULL);
	atomic_store(&((struct gpushare_slot *)slot)->pending_bytes, 0);
	return NULL;
}

static void undecided_bytes_are_waited_for(void)
{
	pthread_t thread;

	tenant_reset(100 * MIB);
	process_record(1)->pid = (uint32_t)getppid();
	process_record(1)->starttime = 0; /* alive: it is only known to have a pid */
	process_slot(0, 1)->pending_bytes = 60 * MIB;
	pages.status->high_water = 2;
	pthread_create(&thread, NULL, withdraw_later, process_slot(0, 1));
	CHECK(ledger_reserve(0, 100 * MIB));
	pthread_join(thread, NULL);
}

static void undecided_bytes_are_never_given_twice(void)
{
	tenant_reset(100 * MIB);
	process_record(1)->pid = (uint32_t)getppid();
	process_record(1)->starttime = 0;
	process_slot(0, 1)->pending_bytes = 60 * MIB;
	pages.status->high_water = 2;
	CHECK(!ledger_reserve(0, 41 * MIB)); /* after its wait */
	CHECK(ledger_reserve(0, 40 * MIB));
}

#define THREADS 8
#define ROUNDS 20000

static void *reserve_and_release(void *unused)
{
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t bytes = (uint64_t)(round % 5 + 1) * MIB;
		if (ledger_reserve(0, bytes))
			ledger_release(0, bytes);
	}
	return unused;
}

static void threads_give_back_exactly(void)
{
	pthread_t threads[THREADS];

	tenant_reset(16 * MIB);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, reserve_and_release, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(tenant_used_bytes() == 0);
}

static void *take_all(void *taken)
{
	while (ledger_reserve(0, MIB))
		++*(uint64_t *)taken;
	return NULL;
}

static void threads_share_out_every_byte(void)
{
	pthread_t threads[THREADS];
	uint64_t taken[THREADS * 8] = {0}; /* a cache line each */
	uint64_t sum = 0;

	tenant_reset(1000 * MIB);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, take_all, &taken[i * 8]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		sum += taken[i * 8];
	CHECK(sum == 1000);
	CHECK(tenant_used_bytes() == 1000 * MIB);
}

int main(void)
{
	tenant_create(MIB);
	TEST(last_byte, "the last byte of the quota is given, the next is refused");
	TEST(denials_are_counted, "each refusal is counted");
	TEST(contexts_count, "a context takes its memory from the quota");
	TEST(measured_overhead_counts_instead_of_contexts,
		"overhead that was measured counts where it is more than the contexts");
	TEST(resize, "a smaller quota refuses until the use fits, a larger one gives at once");
	TEST(undecided_bytes_are_waited_for, "a refusal waits for what others have not decided");
	TEST(undecided_bytes_are_never_given_twice, "what others never decide stays theirs");
	TEST(threads_give_back_exactly, "threads leave nothing behind");
	TEST(threads_share_out_every_byte, "threads get every byte between them and no more");
	return 0;
}
