/* SPDX-License-Identifier: Apache-2.0
 *
 * The checkpoint API, in the process that calls it. It may concern any process of the machine that
 * has called cuInit, this one included.
 */
#include "checkpoint.h"

#include "clock.h"
#include "driver.h"
#include "share/futex.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS UINT64_C(20000000) /* for a target that has died */

/* The thread group of a thread: NVIDIA's driver takes either for the process. */
static int process_of(int thread)
{
	char path[48], text[256];
	int group = thread;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", thread);
	status = fopen(path, "re");
	while (status && fgets(text, sizeof(text), status)) {
		if (sscanf(text, "Tgid: %d", &group) == 1)
			break;
	}
	if (status)
		fclose(status);
	return group;
}

/* The slot and the tag of the driver that serves checkpoints in the process. */
static CUresult find(int pid, struct sim_checkpoint **target, uint64_t *tag)
{
	/* The calls work without cuInit. */
	REQUIRE(device_attach() == DEVICE_READY, CUDA_ERROR_NOT_INITIALIZED);
	REQUIRE(pid > 0, CUDA_ERROR_INVALID_VALUE);
	pid = process_of(pid);
	for (uint32_t i = 0; i < atomic_load(&device->processes_high); i++) {
		int other = 0;

		*target = &device->checkpoints[i];
		*tag = atomic_load(&device->processes[i].generation) << 16 | (i + 1);
		if (atomic_load(&(*target)->serving) && process_alive(*tag, &other) && other == pid)
			return CUDA_SUCCESS;
	}
	return kill(pid, 0) != 0 && errno == ESRCH ? CUDA_ERROR_OPERATING_SYSTEM
						   : CUDA_ERROR_INVALID_VALUE;
}

/* Wait for the answer to request number `number`; false if the process has died. */
static bool wait_for(struct sim_checkpoint *target, uint64_t tag, uint32_t number)
{
	uint32_t answered;

	while ((answered = atomic_load(&target->replies)) != number) {
		futex_wait(&target->replies, answered, clock_ns() + LOOK_NS, FUTEX_OF_ALL);
		if (atomic_load(&target->replies) != number && !process_alive(tag, NULL))
			return false;
	}
	return true;
}

/* One caller at a time; a dead one's request is completed first. */
static bool take(struct sim_checkpoint *target, uint64_t tag)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	uint64_t other = 0;

	while (!atomic_compare_exchange_strong(&target->caller, &other, process_tag())) {
		if (!process_alive(tag, NULL))
			return false;
		if (other != process_tag() && !process_alive(other, NULL) &&
			atomic_compare_exchange_strong(&target->caller, &other, process_tag()))
			break;
		other = 0;
		nanosleep(&pause, NULL);
	}
	return wait_for(target, tag, atomic_load(&target->requests));
}

static CUresult request(struct sim_checkpoint *target, uint64_t tag,
	enum checkpoint_operation operation, unsigned int timeout_ms,
	const CUcheckpointRestoreArgs *moves)
{
	CUresult result = CUDA_ERROR_OPERATING_SYSTEM;

	if (!take(target, tag))
		return CUDA_ERROR_OPERATING_SYSTEM;
	target->operation = operation;
	target->timeout_ms = timeout_ms;
	target->caller_started = atomic_load(&driver_started);
	target->pairs = moves ? moves->gpuPairsCount : 0;
	for (uint32_t i = 0; i < target->pairs; i++) {
		memcpy(target->from[i], moves->gpuPairs[i].oldUuid.bytes, 16);
		memcpy(target->to[i], moves->gpuPairs[i].newUuid.bytes, 16);
	}
	const uint32_t number = atomic_fetch_add(&target->requests, 1) + 1;

	futex_wake_all(&target->requests, FUTEX_OF_ALL);
	if (wait_for(target, tag, number))
		result = (CUresult)target->result;
	atomic_store(&target->caller, 0);
	return result;
}

static bool is_zero(const void *bytes, size_t count)
{
	static const char zeros[64];

	return memcmp(bytes, zeros, count) == 0;
}

static CUresult request_of(int pid, enum checkpoint_operation operation, unsigned int timeout_ms,
	const CUcheckpointRestoreArgs *moves)
{
	struct sim_checkpoint *target;
	uint64_t tag;
	CUresult status = find(pid, &target, &tag);

	return status == CUDA_SUCCESS ? request(target, tag, operation, timeout_ms, moves) : status;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *arguments)
{
	REQUIRE(!arguments || (arguments->reserved0 == 0 &&
				      is_zero(arguments->reserved1, sizeof(arguments->reserved1))),
		CUDA_ERROR_INVALID_VALUE);
	return request_of(pid, CHECKPOINT_LOCK, arguments ? arguments->timeoutMs : 0, NULL);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *arguments)
{
	REQUIRE(!arguments || is_zero(arguments, sizeof(*arguments)), CUDA_ERROR_INVALID_VALUE);
	return request_of(pid, CHECKPOINT_CHECKPOINT, 0, NULL);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *arguments)
{
	REQUIRE(!arguments ||
			(arguments->reserved0 == 0 &&
				is_zero(arguments->reserved1, sizeof(arguments->reserved1)) &&
				arguments->gpuPairsCount <= SIM_CARDS &&
				(arguments->gpuPairs != NULL) == (arguments->gpuPairsCount > 0)),
		CUDA_ERROR_INVALID_VALUE);
	/* Before, these bytes were reserved. */
	REQUIRE(!arguments || arguments->gpuPairsCount == 0 ||
			device_cuda_version() >= CHECKPOINT_PAIRS_CUDA,
		CUDA_ERROR_INVALID_VALUE);
	return request_of(pid, CHECKPOINT_RESTORE, 0, arguments);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *arguments)
{
	REQUIRE(!arguments || is_zero(arguments, sizeof(*arguments)), CUDA_ERROR_INVALID_VALUE);
	return request_of(pid, CHECKPOINT_UNLOCK, 0, NULL);
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct sim_checkpoint *target;
	uint64_t tag;
	CUresult status;

	REQUIRE(state, CUDA_ERROR_INVALID_VALUE);
	status = find(pid, &target, &tag);
	if (status == CUDA_SUCCESS)
		*state = (CUprocessState)atomic_load(&target->state);
	return status;
}

static bool has_name(int pid, const char *thread)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/comm", pid, thread);
	file = fopen(path, "re");
	if (!file)
		return false;
	const bool same =
		fgets(name, sizeof(name), file) && strcmp(name, CHECKPOINT_THREAD "\n") == 0;

	fclose(file);
	return same;
}

/* By its name: its own number is valid in its own PID namespace only. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
	struct sim_checkpoint *target;
	const struct dirent *entry;
	char path[48];
	uint64_t tag;
	CUresult status;

	REQUIRE(thread, CUDA_ERROR_INVALID_VALUE);
	status = find(pid, &target, &tag);
	if (status != CUDA_SUCCESS)
		return status;
	pid = process_of(pid);
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	DIR *threads = opendir(path);

	REQUIRE(threads, CUDA_ERROR_OPERATING_SYSTEM);
	*thread = 0;
	while (*thread == 0 && (entry = readdir(threads))) {
		if (has_name(pid, entry->d_name))
			*thread = atoi(entry->d_name);
	}
	closedir(threads);
	return *thread ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
