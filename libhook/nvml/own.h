/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's own processes on a card, from the status page: with the pids of the namespace in
 * which they entered themselves.
 */
#ifndef GPUSHARE_OWN_H
#define GPUSHARE_OWN_H

#include <stdbool.h>
#include <stdint.h>

struct own_process {
	unsigned int pid;
	uint64_t bytes; /* buffers and contexts */
};

/* Call `visit` for each process that holds a context or memory on `card` and is alive. */
void own_processes(
	unsigned card, void (*visit)(const struct own_process *process, void *data), void *data);

/* Whether the process of that pid is the tenant's, and alive. */
bool is_own_process(unsigned int pid);

#endif
