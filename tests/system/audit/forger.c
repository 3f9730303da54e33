/* SPDX-License-Identifier: Apache-2.0 */
/* forger burst BYTES, forger sawtooth BYTES: takes so much of the first card by the driver that is
 * linked into it, and writes into its tenant's status page what would excuse it.
 *
 * burst: it waits until its limit is that high, says so, and waits until the limit falls. Then it
 * claims to use as much as it might before, and takes it.
 * sawtooth: it claims to map memory of others, has the memory for 4.5 of every 5 seconds, and says
 * so each time. */
#include "gpushare_abi.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long CUdeviceptr;

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
int cuMemFree_v2(CUdeviceptr pointer);

#define TENANT GPUSHARE_TENANT_DIR "/"

static char *status, *grant;

static void *mapped(const char *path, size_t bytes, int flags, int protection)
{
	int fd = open(path, flags);
	void *page = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

	if (page == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	return page;
}

static uint64_t starttime(void)
{
	char text[4096] = {0}, *field;
	FILE *file = fopen("/proc/self/stat", "r");

	if (!file || !fgets(text, sizeof(text), file))
		exit(1);
	fclose(file);
	field = strrchr(text, ')') + 1;
	for (int number = 3; number <= 22; number++)
		field = strchr(field, ' ') + 1;
	return strtoull(field, NULL, 10);
}

static void enter(void)
{
	struct gpushare_process *process = (void *)(status + GPUSHARE_STATUS_PROCESS_OFFSET);

	process->starttime = starttime();
	process->pid = (uint32_t)getpid();
	((struct gpushare_status_header *)status)->high_water = 1;
}

static struct gpushare_usage *usage(void)
{
	return (void *)(status + GPUSHARE_STATUS_USAGE_OFFSET);
}

static uint64_t limit(void)
{
	struct gpushare_grant_card *card = (void *)(grant + GPUSHARE_GRANT_CARD_OFFSET(0));

	return card->current_limit_bytes;
}

static void moment(long milliseconds)
{
	const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};

	nanosleep(&time, NULL);
}

static void say(const char *event, int code)
{
	printf("{\"event\":\"%s\",\"code\":%d}\n", event, code);
	fflush(stdout);
}

static void burst(uint64_t bytes)
{
	CUdeviceptr pointer;

	while (limit() < bytes)
		moment(5);
	say("ready", 0);
	while (limit() >= bytes)
		moment(5);
	usage()->held[0] = bytes;
	say("taken", cuMemAlloc_v2(&pointer, bytes));
	for (;;)
		moment(20);
}

static void sawtooth(uint64_t bytes)
{
	usage()->imported[0] = bytes;
	for (;;) {
		CUdeviceptr pointer;
		int code = cuMemAlloc_v2(&pointer, bytes);

		say("taken", code);
		moment(4500);
		if (!code)
			cuMemFree_v2(pointer);
		moment(500);
	}
}

int main(int argc, char **argv)
{
	const uint64_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	void *context = NULL;
	int device = 0;
	int code = cuInit(0);

	if (!code)
		code = cuDeviceGet(&device, 0);
	if (!code)
		code = cuDevicePrimaryCtxRetain(&context, device);
	if (!code)
		code = cuCtxSetCurrent(context);
	status = mapped(
		TENANT GPUSHARE_STATUS_NAME, GPUSHARE_STATUS_BYTES, O_RDWR, PROT_READ | PROT_WRITE);
	grant = mapped(TENANT GPUSHARE_GRANT_NAME, GPUSHARE_GRANT_BYTES, O_RDONLY, PROT_READ);
	enter();
	say("driver", code);
	if (code)
		return 1;
	if (!strcmp(argv[1], "burst"))
		burst(bytes);
	sawtooth(bytes);
}
