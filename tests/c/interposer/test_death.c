/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that end, fork or exec.
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quota/ledger.h"
#include "quota/process_table.h"
#include "quota/pages.h"
#include "tenant.h"

static _Atomic int *step; /* shared by parent and children */

/* A child whose CHECK has failed takes no further step. */
static void wait_step(int wanted)
{
	while (atomic_load(step) < wanted) {
		siginfo_t ended = {0};

		if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0)
			CHECK(ended.si_code != CLD_EXITED || ended.si_status == 0);
		usleep(1000);
	}
}

static void *share(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

static void take_and_give_back_for_ever(void)
{
	for (uint64_t bytes = 1;; bytes = bytes % 7 + 1) {
		if (ledger_reserve(0, GPUSHARE_KIND_BUFFER, bytes * MIB))
			ledger_release(0, GPUSHARE_KIND_BUFFER, bytes * MIB);
		uint64_t price;
		if (ledger_reserve_context(0, &price))
			ledger_release_context(0, price);
	}
}

/* With a quota so small that the children also die while they hold the page's lock. */
static void killed_anywhere(void)
{
	tenant_reset(12 * MIB);
	tenant_card()->context_bytes = MIB;
	for (int round = 0; round < 100; round++) {
		pid_t children[4];
		for (int i = 0; i < 4; i++)
			children[i] = start_child(take_and_give_back_for_ever);
		usleep((unsigned)(round * 37 % 5000));
		for (int i = 0; i < 4; i++)
			kill(children[i], SIGKILL);
		for (int i = 0; i < 4; i++)
			CHECK(wait_child(children[i]) == 128 + SIGKILL);
		CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 12 * MIB));
		CHECK(tenant_used_bytes() == 12 * MIB);
		ledger_release(0, GPUSHARE_KIND_BUFFER, 12 * MIB);
	}
	CHECK(process_count() <= 5);
}

static void take_five_and_wait(void)
{
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 5 * MIB));
	atomic_store(step, 1);
	wait_step(2);
}

static void zombie_holds_nothing(void)
{
	tenant_reset(5 * MIB);
	atomic_store(step, 0);
	pid_t child = start_child(take_five_and_wait);
	wait_step(1);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 1));
	kill(child, SIGKILL);
	siginfo_t ended;
	CHECK(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT) == 0); /* dead, not reaped */
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 5 * MIB));
	wait_child(child);
}

/* No process is refused, and no daemon runs. */
static void a_reader_clears_what_a_killed_process_left(void)
{
	tenant_reset(10 * MIB);
	atomic_store(step, 0);
	pid_t child = start_child(take_five_and_wait);
	wait_step(1);
	process_table_refresh();
	CHECK(tenant_used_bytes() == 5 * MIB);
	kill(child, SIGKILL);
	wait_child(child);
	while (tenant_used_bytes() != 0) {
		process_table_refresh();
		usleep(1000);
	}
}

static void grandchild_waits(void)
{
	prctl(PR_SET_PDEATHSIG, 0); /* it lives on, until its alarm at the latest */
	atomic_store(step, 1);
	wait_step(2);
}

/* The child takes all and dies while a child of its own lives on. */
static void take_all_and_fork(void)
{
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 10 * MIB));
	start_child(grandchild_waits);
	wait_step(1);
}

static void orphan_does_not_keep_its_parents_memory(void)
{
	tenant_reset(10 * MIB);
	atomic_store(step, 0);
	CHECK(in_child(take_all_and_fork) == 0);
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 10 * MIB));
	atomic_store(step, 2);
}

static void take_all_and_exec(void)
{
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 10 * MIB));
	execl("/proc/self/exe", "test_death", "successor", NULL);
	_Exit(99);
}

/* After exec: another program with the same pid. The memory went with the old one. */
static int successor(void)
{
	CHECK(pages_open(PAGES_WRITE) == NULL);
	CHECK(process_table_join() == NULL);
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 10 * MIB));
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 1));
	CHECK(process_count() == 2);
	return 0;
}

static void exec_starts_anew(void)
{
	tenant_reset(10 * MIB);
	CHECK(in_child(take_all_and_exec) == 0);
}

static void another_process_with_the_same_pid(void)
{
	tenant_reset(10 * MIB);
	process_record(1)->pid = (uint32_t)getppid();
	process_record(1)->starttime = 1; /* of a process long gone */
	card_usage(0)->held[1] = 10 * MIB;
	pages.status->high_water = 2;
	CHECK(ledger_reserve(0, GPUSHARE_KIND_BUFFER, 10 * MIB));
	CHECK(process_record(1)->pid == 0);
}

static void join_in_vain(void)
{
	CHECK(process_table_join() != NULL);
	CHECK(!ledger_reserve(0, GPUSHARE_KIND_BUFFER, 1));
}

static void a_full_page_refuses(void)
{
	tenant_reset(10 * MIB);
	for (unsigned number = 1; number < GPUSHARE_MAX_PROCESSES; number++)
		process_record(number)->pid = (uint32_t)getppid(); /* alive */
	pages.status->high_water = UINT32_MAX;			   /* a tenant may write anything */
	CHECK(in_child(join_in_vain) == 0);
}

int main(int count, char **arguments)
{
	if (count > 1 && strcmp(arguments[1], "successor") == 0)
		return successor();
	step = share(sizeof(*step));
	tenant_create(MIB);
	TEST(killed_anywhere);
	TEST(zombie_holds_nothing);
	TEST(a_reader_clears_what_a_killed_process_left);
	TEST(orphan_does_not_keep_its_parents_memory);
	TEST(exec_starts_anew);
	TEST(another_process_with_the_same_pid);
	TEST(a_full_page_refuses);
	return 0;
}
