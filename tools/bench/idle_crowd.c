/* SPDX-License-Identifier: Apache-2.0 */
/* idle_crowd COUNT: has so many processes that do nothing, says so, and writes records of processes
 * that are dead into its tenant's status page, without an end. */
#include "gpushare_abi.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	const struct timespec moment = {.tv_nsec = 20000000};
	const long count = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
	int fd = open(GPUSHARE_TENANT_DIR "/" GPUSHARE_STATUS_NAME, O_RDWR);
	char *status = fd < 0 ? MAP_FAILED
			      : mmap(NULL, GPUSHARE_STATUS_BYTES, PROT_READ | PROT_WRITE,
					MAP_SHARED, fd, 0);

	if (status == MAP_FAILED)
		return 1;
	for (long number = 0; number < count; number++) {
		const pid_t child = fork();

		if (child < 0)
			return 1;
		if (!child)
			for (;;)
				pause();
	}
	puts("{\"event\":\"driver\",\"code\":0}");
	fflush(stdout);
	((struct gpushare_status_header *)status)->high_water = GPUSHARE_MAX_PROCESSES;
	for (uint64_t starttime = 1;; starttime++) {
		struct gpushare_process *process =
			(struct gpushare_process *)(status + GPUSHARE_STATUS_PROCESS_OFFSET);

		for (int number = 0; number < GPUSHARE_MAX_PROCESSES; number++) {
			process[number].starttime = starttime;
			process[number].pid = 1000000 + (uint32_t)number;
		}
		nanosleep(&moment, NULL);
	}
}
