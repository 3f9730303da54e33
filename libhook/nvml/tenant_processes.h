/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's own processes on a card, from the status page: with PIDs of the namespace in which
 * they registered.
 */
#ifndef GPUSHARE_TENANT_PROCESSES_H
#define GPUSHARE_TENANT_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>

struct tenant_process {
	unsigned int pid;
	uint64_t bytes; /* buffers and contexts */
};

/* Call `visit` for each process that holds a context or memory on `card` and is alive. */
void tenant_processes(
	unsigned card, void (*visit)(const struct tenant_process *process, void *data), void *data);

/* Whether the process with that PID belongs to the tenant and is alive. */
bool is_tenant_process(unsigned int pid);

/* The memory that processes have which were killed: they cannot remove their records, and no
 * program that only looks may. cuMemGetInfo shows it as free at once. */
uint64_t ended_bytes(unsigned card);

#endif
