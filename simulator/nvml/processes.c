/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that have a context on a card. There are no graphics processes. The clients of an
 * MPS server are in both lists, as nvidia-smi's type M+C suggests. A process is not listed in a PID
 * namespace that does not contain it.
 */
#include "../limit.h"
#include "../piece.h"
#include "library.h"

#include "clock.h"
#include "engine.h"

#include <time.h>

static struct process *find(struct process *processes, unsigned int count, unsigned int pid)
{
	for (unsigned int i = 0; i < count; i++) {
		if (processes[i].pid == pid)
			return &processes[i];
	}
	return NULL;
}

/* Epochs of the card's clock; none if `last` is before `first`. */
struct periods {
	uint64_t first, last;
};

/* Add those of one entry to the first `count`, with what was sampled of them. */
static unsigned int processes_add(struct sim_card *card, struct process processes[SIM_PROCESSES],
	unsigned int count, const struct periods *periods)
{
	const struct sim_profile *profile = card_profile(card);
	uint32_t high = atomic_load(&device->processes_high);

	card_look(card);
	limits_find_all(card, true);
	for (uint32_t i = 0; i < high; i++) {
		const struct sim_share *share = &card->shares[i];
		uint64_t tag = atomic_load(&device->processes[i].generation) << 16 | (i + 1);
		struct process *process;
		int pid = 0;

		if (share->contexts == 0 || !process_alive(tag, &pid) || pid == 0)
			continue;
		/* Two copies of the driver in one process are one process. */
		process = find(processes, count, (unsigned int)pid);
		if (!process) {
			process = &processes[count++];
			*process = (struct process){.pid = (unsigned int)pid,
				.gpu_instance =
					profile->parent ? profile->gpu_instance : UINT32_MAX,
				.compute_instance =
					profile->parent ? profile->compute_instance : UINT32_MAX};
		}
		process->mps_client |= share->mps_client != 0;
		process->used_bytes += process_bytes(card, i) - share->managed_bytes;
		process->sampled_ns += busy_sampled_ns(
			card, i, periods->first, periods->last, &process->sampled_epoch);
	}
	card_unlock(card);
	return count;
}

/* Replace the real values by those that a test injected. */
static unsigned int processes_lie(
	const struct sim_card *card, struct process processes[SIM_PROCESSES], unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		if (card_lies(card, SIM_LIE_BYTES))
			processes[i].used_bytes = 2 * card_profile(card)->memory_bytes;
		if (card_lies(card, SIM_LIE_UNSAID))
			processes[i].used_bytes = UINT64_MAX;
	}
	if (card_lies(card, SIM_LIE_TWICE) && count > 0 && count < SIM_PROCESSES) {
		processes[count] = processes[0];
		processes[count++].used_bytes += UINT64_C(1) << 30;
	}
	if (card_lies(card, SIM_LIE_PID) && count < SIM_PROCESSES)
		processes[count++] = (struct process){.pid = UINT32_MAX - 1,
			.gpu_instance = UINT32_MAX,
			.compute_instance = UINT32_MAX,
			.used_bytes = UINT64_C(1) << 30};
	return count;
}

static unsigned int processes_in(struct sim_card *card, struct process processes[SIM_PROCESSES],
	const struct periods *periods)
{
	unsigned int count = 0;

	for (uint32_t i = 0; i < device_entries(); i++) {
		if (card_has(card, i))
			count = processes_add(&device->cards[i], processes, count, periods);
	}
	return device->faults[card_index(card)].lies ? processes_lie(card, processes, count)
						     : count;
}

unsigned int processes_on(struct sim_card *card, struct process processes[SIM_PROCESSES])
{
	return processes_in(card, processes, &(struct periods){.first = 1});
}

/* As in all of the lists: return the number if there is no room for the entries. */
static nvmlReturn_t check_room(unsigned int *count, unsigned int found, const void *array)
{
	unsigned int room = array ? *count : 0;

	*count = found;
	return room < found ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* All processes, or only the clients of MPS servers. */
static unsigned int processes_of(
	struct sim_card *card, struct process processes[SIM_PROCESSES], bool only_mps)
{
	unsigned int count = processes_on(card, processes);
	unsigned int kept = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (!only_mps || processes[i].mps_client)
			processes[kept++] = processes[i];
	}
	return kept;
}

static nvmlReturn_t compute_processes(
	nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_v2_t *infos, bool only_mps)
{
	struct process processes[SIM_PROCESSES];
	nvmlReturn_t status;

	REQUIRE_CARD(card, handle);
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->unified != SIM_UNIFIED_NOTHING, NVML_ERROR_NOT_SUPPORTED);
	status = check_room(count, processes_of(card, processes, only_mps), infos);
	for (unsigned int i = 0; status == NVML_SUCCESS && i < *count; i++)
		infos[i] = (nvmlProcessInfo_v2_t){.pid = processes[i].pid,
			.usedGpuMemory = processes[i].used_bytes,
			.gpuInstanceId = processes[i].gpu_instance,
			.computeInstanceId = processes[i].compute_instance};
	return status;
}

static nvmlReturn_t compute_processes_v1(
	nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_v1_t *infos, bool only_mps)
{
	struct process processes[SIM_PROCESSES];
	nvmlReturn_t status;

	REQUIRE_CARD(card, handle);
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(card_profile(card)->unified != SIM_UNIFIED_NOTHING, NVML_ERROR_NOT_SUPPORTED);
	status = check_room(count, processes_of(card, processes, only_mps), infos);
	for (unsigned int i = 0; status == NVML_SUCCESS && i < *count; i++)
		infos[i] = (nvmlProcessInfo_v1_t){processes[i].pid, processes[i].used_bytes};
	return status;
}

#define PROCESSES(name, type, list, only_mps)                                                      \
	nvmlReturn_t name(nvmlDevice_t handle, unsigned int *count, type *infos)                   \
	{                                                                                          \
		return list(handle, count, infos, only_mps);                                       \
	}

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, compute_processes_v1, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, compute_processes, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, compute_processes, false)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, compute_processes_v1, true)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, compute_processes, true)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, compute_processes, true)

static nvmlReturn_t no_processes(nvmlDevice_t handle, unsigned int *count)
{
	REQUIRE_CARD(card, handle);
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	return NVML_SUCCESS;
}

#define NO_PROCESSES(name, type)                                                                   \
	nvmlReturn_t name(nvmlDevice_t handle, unsigned int *count, type *infos)                   \
	{                                                                                          \
		(void)infos;                                                                       \
		return no_processes(handle, count);                                                \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(
	nvmlDevice_t handle, nvmlProcessDetailList_v1_t *list)
{
	struct process processes[SIM_PROCESSES];
	nvmlReturn_t status;

	REQUIRE_CARD(card, handle);
	REQUIRE(list && list->mode <= 2, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(list->version == NVML_STRUCTURE_VERSION(nvmlProcessDetailList_v1_t, 1),
		NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	if (list->mode == 1)
		return no_processes(handle, &list->numProcArrayEntries);
	status = check_room(&list->numProcArrayEntries,
		processes_of(card, processes, list->mode == 2), list->procArray);
	for (unsigned int i = 0; status == NVML_SUCCESS && i < list->numProcArrayEntries; i++)
		list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = processes[i].pid,
			.usedGpuMemory = processes[i].used_bytes,
			.gpuInstanceId = processes[i].gpu_instance,
			.computeInstanceId = processes[i].compute_instance};
	return status;
}

static int64_t wall_less_clock_ns(void)
{
	struct timespec wall;

	clock_gettime(CLOCK_REALTIME, &wall);
	return (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)clock_ns();
}

/* The processes that periods which ended after `last_seen` are counted for: how busy they had the
 * card over all of these periods, and the end of the last of them. */
static unsigned int sampled(struct sim_card *card, struct process processes[SIM_PROCESSES],
	unsigned long long last_seen)
{
	const int64_t ahead_ns = wall_less_clock_ns();
	const int64_t since_ns = (int64_t)(last_seen * 1000) - ahead_ns;
	struct periods periods = {.last = clock_ns() / SIM_PERIOD_NS - 1};
	unsigned int kept = 0;

	periods.first = periods.last - (SIM_PERIODS - 2);
	if (since_ns >= (int64_t)((periods.first + 1) * SIM_PERIOD_NS))
		periods.first = (uint64_t)since_ns / SIM_PERIOD_NS;
	if (periods.first > periods.last)
		return 0;
	unsigned int count = processes_in(card, processes, &periods);
	if (count > 0) {
		processes[0].encoder_percent = device->faults[card_index(card)].encoder_percent;
		processes[0].decoder_percent = device->faults[card_index(card)].decoder_percent;
	}
	for (unsigned int i = 0; i < count; i++) {
		struct process *process = &processes[i];
		uint64_t all_ns = (periods.last - periods.first + 1) * SIM_PERIOD_NS;

		if (process->encoder_percent || process->decoder_percent)
			process->sampled_epoch = periods.last;
		else if (process->sampled_ns == 0)
			continue;
		process->busy_percent = (unsigned int)(process->sampled_ns * 100 / all_ns);
		process->sampled_at =
			((process->sampled_epoch + 1) * SIM_PERIOD_NS + (uint64_t)ahead_ns) / 1000;
		processes[kept++] = *process;
	}
	return kept;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle,
	nvmlProcessUtilizationSample_t *samples, unsigned int *count, unsigned long long last_seen)
{
	struct process processes[SIM_PROCESSES];
	nvmlReturn_t status;

	REQUIRE_CARD(card, handle);
	REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
	unsigned int found = sampled(card, processes, last_seen);
	REQUIRE(found > 0, NVML_ERROR_NOT_FOUND);
	status = check_room(count, found, samples);
	for (unsigned int i = 0; status == NVML_SUCCESS && i < found; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){.pid = processes[i].pid,
			.timeStamp = processes[i].sampled_at,
			.smUtil = processes[i].busy_percent,
			.encUtil = processes[i].encoder_percent,
			.decUtil = processes[i].decoder_percent};
	return status;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
	nvmlDevice_t handle, nvmlProcessesUtilizationInfo_v1_t *info)
{
	struct process processes[SIM_PROCESSES];
	nvmlReturn_t status;

	REQUIRE_CARD(card, handle);
	REQUIRE(info, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(info->version == NVML_STRUCTURE_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1),
		NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	unsigned int found = sampled(card, processes, info->lastSeenTimeStamp);
	REQUIRE(found > 0, NVML_ERROR_NOT_FOUND);
	status = check_room(&info->processSamplesCount, found, info->procUtilArray);
	for (unsigned int i = 0; status == NVML_SUCCESS && i < found; i++)
		info->procUtilArray[i] =
			(nvmlProcessUtilizationInfo_v1_t){.timeStamp = processes[i].sampled_at,
				.pid = processes[i].pid,
				.smUtil = processes[i].busy_percent,
				.encUtil = processes[i].encoder_percent,
				.decUtil = processes[i].decoder_percent};
	return status;
}
