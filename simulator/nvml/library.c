/* SPDX-License-Identifier: Apache-2.0
 *
 * Initialization, versions and errors.
 */
#include "library.h"

#include "clock.h"
#include "engine.h"

#include <stdio.h>
#include <string.h>

static _Atomic int initialised; /* how often nvmlInit was called more than nvmlShutdown */

nvmlReturn_t library_status(void)
{
	if (atomic_load(&initialised) == 0)
		return NVML_ERROR_UNINITIALIZED;
	/* A forked child continues with what its parent initialized, as with the real library. */
	if (device_state() != DEVICE_READY && device_attach_child() != DEVICE_READY)
		return NVML_ERROR_UNKNOWN;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	if (device_attach_child() != DEVICE_READY)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	/* It queries every card; a lost one does not make it fail. */
	for (uint32_t i = 0; i < device_entries(); i++)
		(void)fault_answer(&device->faults[i]);
	if (device->header.nvml_init_error)
		return (nvmlReturn_t)device->header.nvml_init_error;
	atomic_fetch_add(&initialised, 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
	int count = atomic_load(&initialised);

	do {
		if (count == 0) /* no error to drivers 470 to 555 */
			return NVML_SUCCESS;
	} while (!atomic_compare_exchange_weak(&initialised, &count, count - 1));
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
#define NVML_RESULT(name, value, since, words)                                                     \
	case name:                                                                                 \
		return (since) <= device_cuda_version() ? (words) : "Unknown Error";
#include "table/nvml_result.inc"
#undef NVML_RESULT
	}
	return "Unknown Error";
}

nvmlReturn_t text_out(char *to, unsigned int length, const char *text)
{
	REQUIRE(to, NVML_ERROR_INVALID_ARGUMENT);
	REQUIRE(strlen(text) < length, NVML_ERROR_INSUFFICIENT_SIZE);
	memcpy(to, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	return text_out(version, length, device->header.driver_version);
}

static bool is_told_early(void)
{
	return device_attach_child() == DEVICE_READY && device->header.cuda_version >= 12020;
}

/* NVML's own version is the CUDA major version and the driver's. Drivers from CUDA 12.2 on tell it
 * before nvmlInit. */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[96];

	REQUIRE(library_status() == NVML_SUCCESS || is_told_early(), library_status());
	snprintf(text, sizeof(text), "%u.%s", device->header.cuda_version / 1000,
		device->header.driver_version);
	return text_out(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(version, NVML_ERROR_INVALID_ARGUMENT);
	*version = (int)device->header.cuda_version;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[32], text[1024];
	size_t read;
	FILE *file;

	REQUIRE(library_status() == NVML_SUCCESS, library_status());
	REQUIRE(name && length > 0, NVML_ERROR_INVALID_ARGUMENT);
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	file = fopen(path, "re");
	REQUIRE(file, NVML_ERROR_NOT_FOUND);
	read = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[read] = '\0'; /* the arguments may end in zeros themselves: this is the first */
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

/* The calls of one sample follow each other at once, and look for dead processes once: that is a
 * system call for each process on the card. */
#define SAME_SAMPLE_NS UINT64_C(200000)

uint64_t card_look(struct sim_card *card)
{
	uint64_t now = clock_ns();

	card_lock(card);
	if (now - card->looked_ns > SAME_SAMPLE_NS)
		card_reap(card);
	engine_settle(card, now);
	return now;
}
