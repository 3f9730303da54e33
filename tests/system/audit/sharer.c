/* SPDX-License-Identifier: Apache-2.0 */
/* sharer: shares memory of the first card with another process, command by command on stdin, each
 * answered by a line of JSON with the driver's result:
 *
 *	alloc BYTES		cuMemAlloc
 *	create BYTES, drop	physical memory, and the release of the last handle
 *	listen PATH, take	receive a descriptor, and import its memory
 *	send PATH		export the last handle, and send the descriptor
 *	map BYTES		map the last handle
 *	info			cuMemGetInfo
 */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CALL(name, ...)                                                                            \
	call(#name, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (uint64_t[]){__VA_ARGS__})
#define TO(what) ((uint64_t)(uintptr_t)(what))

static void *driver;
static CUmemGenericAllocationHandle handles[64];
static unsigned held;
static CUdeviceptr pointer;
static int box = -1;

/* All arguments are integers or pointers, which the ABI passes alike. */
static int call(const char *name, size_t count, const uint64_t *given)
{
	uint64_t a[6] = {0};
	int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

	*(void **)&function = dlsym(driver, name);
	memcpy(a, given, count * sizeof(*given));
	return function ? function(a[0], a[1], a[2], a[3], a[4], a[5]) : -1;
}

static struct sockaddr_un address(const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	return to;
}

static bool pass(const char *path, int file)
{
	struct sockaddr_un to = address(path);
	struct iovec part = {"", 1};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct msghdr message = {.msg_name = &to,
		.msg_namelen = sizeof(to),
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	int from = socket(AF_UNIX, SOCK_DGRAM, 0);

	memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
	bool is_sent = sendmsg(from, &message, 0) >= 0;
	close(from);
	return is_sent;
}

static int receive(void)
{
	char text;
	struct iovec part = {&text, 1};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	int file = -1;

	if (recvmsg(box, &message, 0) > 0 && message.msg_controllen)
		memcpy(&file, CMSG_DATA(&control.header), sizeof(file));
	return file;
}

static int create(size_t bytes)
{
	CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = 1,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

	return CALL(cuMemCreate, TO(&handles[held++]), bytes, TO(&kind), 0);
}

static int give(const char *path)
{
	int file = -1;
	int code = CALL(cuMemExportToShareableHandle, TO(&file), handles[held - 1], 1, 0);

	if (!code && !pass(path, file))
		code = -2;
	close(file);
	return code;
}

static int take(void)
{
	int file = receive();
	int code = CALL(cuMemImportFromShareableHandle, TO(&handles[held++]), (uint64_t)file, 1);

	close(file);
	return code;
}

static int map(size_t bytes)
{
	CUdeviceptr where = 0;
	int code = CALL(cuMemAddressReserve, TO(&where), bytes, 0, 0, 0);

	return code ? code : CALL(cuMemMap, where, bytes, 0, handles[held - 1], 0);
}

static int start(void)
{
	void *context = NULL;
	int code;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		return -1;
	code = CALL(cuInit, 0);
	if (!code)
		code = CALL(cuDevicePrimaryCtxRetain, TO(&context), 0);
	return code ? code : CALL(cuCtxSetCurrent, TO(context));
}

int main(void)
{
	char line[512], verb[16], text[256];
	int code = start();

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("{\"event\":\"driver\",\"code\":%d}\n", code);
	while (!code && fgets(line, sizeof(line), stdin)) {
		unsigned long long bytes = 0;
		size_t free_bytes = 0, total = 0;
		struct sockaddr_un own;
		int result = -1;

		text[0] = 0;
		verb[0] = 0;
		sscanf(line, "%15s", verb);
		if (!strcmp(verb, "listen") || !strcmp(verb, "send"))
			sscanf(line, "%*s %255s", text);
		else
			sscanf(line, "%*s %llu", &bytes);
		if (!strcmp(verb, "alloc"))
			result = CALL(cuMemAlloc_v2, TO(&pointer), bytes);
		else if (!strcmp(verb, "create"))
			result = create(bytes);
		else if (!strcmp(verb, "drop"))
			result = CALL(cuMemRelease, handles[--held]);
		else if (!strcmp(verb, "listen")) {
			own = address(text);
			box = socket(AF_UNIX, SOCK_DGRAM, 0);
			result = bind(box, (struct sockaddr *)&own, sizeof(own));
		} else if (!strcmp(verb, "take"))
			result = take();
		else if (!strcmp(verb, "send"))
			result = give(text);
		else if (!strcmp(verb, "map"))
			result = map(bytes);
		else if (!strcmp(verb, "info"))
			result = CALL(cuMemGetInfo_v2, TO(&free_bytes), TO(&total));
		printf("{\"event\":\"%s\",\"code\":%d,\"free\":%zu,\"total\":%zu}\n", verb, result,
			free_bytes, total);
	}
	return code;
}
