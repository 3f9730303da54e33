/* SPDX-License-Identifier: Apache-2.0
 *
 * One figure from what a tenant's processes say, whatever they say.
 */
#include "status_page.h"

#include "clock.h"
#include "expect.h"

#include <stdlib.h>
#include <string.h>

#define START (1000 * SECOND)

static struct status_page work;
static struct gpushare_work said[3];

static struct seen look(uint32_t count, uint64_t now_ns)
{
	struct seen seen;
	status_page_sum(&work, said, count, now_ns, &seen);
	return seen;
}

static void begin(void)
{
	memset(&work, 0, sizeof(work));
	memset(said, 0, sizeof(said));
}

static void what_was_before_the_first_look_is_not_counted(void)
{
	begin();
	said[0] = (struct gpushare_work){.busy_ns = 5 * SECOND, .submitted = 9, .ended = 9};
	struct seen seen = look(1, START);
	EXPECT_EQUAL(seen.busy_ns, 0);
	EXPECT_EQUAL(seen.submitted, 0);
	said[0].busy_ns = 5 * SECOND + 3 * MS;
	said[0].submitted = said[0].ended = 11;
	seen = look(1, START + 10 * MS);
	EXPECT_EQUAL(seen.busy_ns, 3 * MS);
	EXPECT_EQUAL(seen.submitted, 2);
}

static void what_is_pending_is_busy_until_now(void)
{
	begin();
	look(1, START);
	said[0] = (struct gpushare_work){
		.submitted = 1, .since_ns = START + 2 * MS, .pending_ns = 7 * MS, .waiting = 2};
	struct seen seen = look(1, START + 6 * MS);
	EXPECT_EQUAL(seen.busy_ns, 4 * MS);
	EXPECT_EQUAL(seen.pending_ns, 7 * MS);
	EXPECT_EQUAL(seen.contexts, 1);
	EXPECT_EQUAL(seen.waiting, 2);
	EXPECT_EQUAL(seen.idle_ns, 0);
	EXPECT_EQUAL(seen.progress_ns, START + 2 * MS);
}

static void an_end_that_is_seen_late_is_not_counted_twice(void)
{
	begin();
	look(1, START);
	said[0] = (struct gpushare_work){.submitted = 1, .since_ns = START};
	EXPECT_EQUAL(look(1, START + 5 * MS).busy_ns, 5 * MS);
	/* It had ended after 3 ms; the next piece takes 4. */
	said[0] = (struct gpushare_work){
		.submitted = 1, .ended = 1, .busy_ns = 3 * MS, .since_ns = START + 3 * MS};
	EXPECT_EQUAL(look(1, START + 6 * MS).busy_ns, 5 * MS);
	said[0] = (struct gpushare_work){
		.submitted = 2, .ended = 2, .busy_ns = 7 * MS, .since_ns = START + 12 * MS};
	EXPECT_EQUAL(look(1, START + 13 * MS).busy_ns, 7 * MS);
}

static void what_a_process_took_stays_when_it_ends(void)
{
	begin();
	look(2, START);
	said[0] = (struct gpushare_work){.submitted = 1, .ended = 1, .busy_ns = 5 * MS};
	said[1] = (struct gpushare_work){.submitted = 1, .ended = 1, .busy_ns = 4 * MS};
	EXPECT_EQUAL(look(2, START + 10 * MS).busy_ns, 9 * MS);
	said[0] = (struct gpushare_work){0}; /* reaped */
	EXPECT_EQUAL(look(2, START + 20 * MS).busy_ns, 9 * MS);
	said[0] = (struct gpushare_work){.submitted = 1, .ended = 1, .busy_ns = 2 * MS};
	EXPECT_EQUAL(look(2, START + 30 * MS).busy_ns, 11 * MS);
	EXPECT_EQUAL(work.said_busy_ns, 6 * MS);
}

static void random_bytes_are_survived(void)
{
	begin();
	unsigned seed = 1;
	uint64_t busy_ns = 0;

	for (uint64_t round = 0; round < 2000; round++) {
		unsigned char *bytes = (unsigned char *)said;
		for (size_t at = 0; at < sizeof(said); at++)
			bytes[at] = (unsigned char)(rand_r(&seed) >> 4);
		const uint64_t now_ns = START + round * MS;
		struct seen seen = look(3, now_ns);
		EXPECT(seen.contexts <= 3 && seen.idle_ns <= now_ns && seen.progress_ns <= now_ns);
		EXPECT(seen.busy_ns >= busy_ns && seen.busy_ns - busy_ns <= 3 * MS);
		busy_ns = seen.busy_ns;
	}
}

int main(void)
{
	what_was_before_the_first_look_is_not_counted();
	what_is_pending_is_busy_until_now();
	an_end_that_is_seen_late_is_not_counted_twice();
	what_a_process_took_stays_when_it_ends();
	random_bytes_are_survived();
	return 0;
}
