/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant_processes.h"

#include "quota/pages.h"
#include "quota/process.h"
#include "quota/usage.h"

/* A process that was killed stays in the page until another needs its record. */
static bool is_alive(const struct gpushare_process *record)
{
	pid_t pid = (pid_t)atomic_load(&record->pid);

	return pid != 0 && process_starttime(pid) == atomic_load(&record->starttime);
}

void tenant_processes(
	unsigned card, void (*visit)(const struct tenant_process *process, void *data), void *data)
{
	for (unsigned number = 0; number < process_count(); number++) {
		const struct gpushare_process *record = process_record(number);
		const struct gpushare_usage *usage = card_usage(card);
		uint64_t held = atomic_load(&usage->held[number]);
		uint32_t contexts = atomic_load(&usage->detail[number].contexts);
		if ((contexts == 0 && held == 0) || !is_alive(record))
			continue;
		struct tenant_process process = {.pid = atomic_load(&record->pid), .bytes = held};
		visit(&process, data);
	}
}

bool is_tenant_process(unsigned int pid)
{
	if (pid == 0 || !pages_are_open())
		return false;
	for (unsigned number = 0; number < process_count(); number++)
		if (atomic_load(&process_record(number)->pid) == pid)
			return is_alive(process_record(number));
	return false;
}

uint64_t ended_bytes(unsigned card)
{
	const struct gpushare_usage *usage = card_usage(card);
	const bool spares_managed = managed_limit_bytes(card) != 0;
	uint64_t sum = 0;

	for (unsigned number = 0; number < process_count(); number++) {
		uint64_t held = atomic_load(&usage->held[number]);
		uint64_t managed = atomic_load(&usage->detail[number].bytes[GPUSHARE_KIND_MANAGED]);
		if (held != 0 && !is_alive(process_record(number)))
			sum += held - (spares_managed && managed < held ? managed : 0);
	}
	return sum;
}
