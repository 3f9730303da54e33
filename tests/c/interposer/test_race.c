/* SPDX-License-Identifier: Apache-2.0
 *
 * Many processes of one tenant at the last byte of its quota.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "quota/ledger.h"
#include "quota/process_table.h"
#include "tenant.h"

#define PROCESSES 80

static struct shared {
	_Atomic unsigned ready;
	_Atomic unsigned taken[PROCESSES];
	_Atomic unsigned done;
	_Atomic bool refused;
} *shared;

static unsigned own; /* the child's place in `taken` */

static void start_together(void)
{
	CHECK(process_table_join() == NULL);
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < PROCESSES)
		usleep(1000);
}

static void end_together(void)
{
	/* No thread frees anything before all have been refused. */
	atomic_fetch_add(&shared->done, 1);
	while (atomic_load(&shared->done) < PROCESSES)
		usleep(1000);
}

static void take_until_refused(void)
{
	start_together();
	while (ledger_reserve(0, GPUSHARE_KIND_BUFFER, MIB))
		atomic_fetch_add(&shared->taken[own], 1);
	end_together();
}

/* All but a few hold their part at any moment, so one byte counted twice is one too many. */
static void take_again_and_again(void)
{
	start_together();
	bool served = ledger_reserve(0, GPUSHARE_KIND_BUFFER, MIB);
	for (int round = 0; served && round < 20000; round++) {
		ledger_release(0, GPUSHARE_KIND_BUFFER, MIB);
		served = ledger_reserve(0, GPUSHARE_KIND_BUFFER, MIB);
	}
	if (!served)
		atomic_store(&shared->refused, true);
	end_together();
}

static void run_all(void (*body)(void))
{
	pid_t children[PROCESSES];

	memset(shared, 0, sizeof(*shared));
	for (own = 0; own < PROCESSES; own++)
		children[own] = start_child(body);
	for (unsigned i = 0; i < PROCESSES; i++)
		CHECK(wait_child(children[i]) == 0);
}

static void every_byte_is_given_once(void)
{
	unsigned sum = 0;

	tenant_reset(1000 * MIB);
	run_all(take_until_refused);
	for (unsigned i = 0; i < PROCESSES; i++)
		sum += shared->taken[i];
	CHECK(sum == 1000);
}

static void nobody_is_refused_while_all_fit(void)
{
	tenant_reset(PROCESSES * MIB);
	run_all(take_again_and_again);
	CHECK(!shared->refused);
}

int main(void)
{
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	tenant_create(MIB);
	TEST(every_byte_is_given_once);
	TEST(nobody_is_refused_while_all_fit);
	return 0;
}
