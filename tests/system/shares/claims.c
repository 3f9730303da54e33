/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that uses no card and claims, in its tenant's status page, to use the first one all the
 * time and to make progress: a second process, which never registered.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpushare_abi.h"

#define NUMBER 1
#define STEP_US 5000

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(void)
{
	const int status = open(GPUSHARE_TENANT_DIR "/" GPUSHARE_STATUS_NAME, O_RDWR);
	/* For reading, too: the scheduler may not have opened it yet. */
	const int wakeup = open(GPUSHARE_TENANT_DIR "/" GPUSHARE_WAKEUP_NAME, O_RDWR | O_NONBLOCK);
	unsigned char *page =
		mmap(NULL, GPUSHARE_STATUS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, status, 0);

	if (page == MAP_FAILED || wakeup < 0)
		return 1;
	struct gpushare_status_header *header = (void *)page;
	struct gpushare_work *work =
		(struct gpushare_work *)(void *)(page + GPUSHARE_STATUS_WORK_OFFSET) + NUMBER;
	if (header->high_water <= NUMBER)
		header->high_water = NUMBER + 1;
	puts("ready");
	fflush(stdout);
	for (uint32_t change = 1;; change++) {
		work->begun = change;
		work->since_ns = now_ns();
		work->busy_ns += UINT64_C(1000) * STEP_US;
		work->pending_ns = 2000 * UINT64_C(1000);
		work->submitted = UINT64_C(1) << 40;
		work->ended = change;
		work->done = change;
		if (write(wakeup, "", 1) != 1)
			continue;
		usleep(STEP_US);
	}
}
