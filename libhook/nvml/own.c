/* SPDX-License-Identifier: Apache-2.0 */
#include "own.h"

#include "quota/pages.h"
#include "quota/process.h"

/* One that was killed stays in the page until somebody needs its room. */
static bool is_alive(const struct gpushare_process *record)
{
	pid_t pid = (pid_t)atomic_load(&record->pid);

	return pid != 0 && process_starttime(pid) == atomic_load(&record->starttime);
}

void own_processes(
	unsigned card, void (*visit)(const struct own_process *process, void *data), void *data)
{
	for (unsigned number = 0; number < process_count(); number++) {
		const struct gpushare_process *record = process_record(number);
		const struct gpushare_usage *usage = card_usage(card);
		uint64_t held = atomic_load(&usage->held[number]);
		uint32_t contexts = atomic_load(&usage->detail[number].contexts);
		if ((contexts == 0 && held == 0) || !is_alive(record))
			continue;
		struct own_process process = {.pid = atomic_load(&record->pid), .bytes = held};
		visit(&process, data);
	}
}

bool is_own_process(unsigned int pid)
{
	if (pid == 0 || !pages_are_open())
		return false;
	for (unsigned number = 0; number < process_count(); number++)
		if (atomic_load(&process_record(number)->pid) == pid)
			return is_alive(process_record(number));
	return false;
}
