/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"

#include "nvml_api.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

bool settled = true;

void fails(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s\n", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line,
		what);
	exit(1);
}

void expect_equal(long long value, long long wanted, const char *what, const char *file, int line)
{
	char text[256];

	if (value == wanted)
		return;
	snprintf(text, sizeof(text), "%s is %lld, not %lld", what, value, wanted);
	fails(file, line, text);
}

void expect_result(CUresult result, CUresult wanted, const char *call, const char *file, int line)
{
	const char *name = "unknown";
	char text[512];

	if (result == wanted)
		return;
	cuGetErrorName(result, &name);
	snprintf(text, sizeof(text), "%s: %s (%d), not %d", call, name, (int)result, (int)wanted);
	fails(file, line, text);
}

void skip(const char *why)
{
	fprintf(stderr, "%s\n", why);
	exit(77);
}

CUcontext begin(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

size_t free_bytes(void)
{
	size_t free, total;

	OK(cuMemGetInfo_v2(&free, &total));
	return free;
}

static CUmemAllocationProp of_card(CUdevice device, CUmemAllocationHandleType handle_type)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = handle_type,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

size_t granule(void)
{
	const CUmemAllocationProp properties = of_card(0, CU_MEM_HANDLE_TYPE_NONE);
	size_t bytes;

	OK(cuMemGetAllocationGranularity(&bytes, &properties, 0));
	return bytes;
}

int attribute(CUdevice_attribute name)
{
	int value;

	OK(cuDeviceGetAttribute(&value, name, 0));
	return value;
}

/* A function of NVML, which a program finds in this way. */
static void *nvml(const char *name)
{
	static void *library;

	if (!library)
		library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	void *function = library ? dlsym(library, name) : NULL;
	if (!function)
		skip("there is no NVML");
	return function;
}

static nvmlDevice_t nvml_card(void)
{
	typeof(&nvmlInit_v2) init = (typeof(&nvmlInit_v2))nvml("nvmlInit_v2");
	typeof(&nvmlDeviceGetHandleByUUID) find =
		(typeof(&nvmlDeviceGetHandleByUUID))nvml("nvmlDeviceGetHandleByUUID");
	static nvmlDevice_t card;
	char text[48] = "GPU-";
	size_t at = 4;
	CUuuid uuid;

	if (card)
		return card;
	OK(cuDeviceGetUuid(&uuid, 0));
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			text[at++] = '-';
		at += (size_t)snprintf(text + at, 3, "%02x", (unsigned char)uuid.bytes[i]);
	}
	EQUAL(init(), 0);
	EQUAL(find(text, &card), 0);
	return card;
}

long long listed_bytes(pid_t pid)
{
	typeof(&nvmlDeviceGetComputeRunningProcesses_v3) list =
		(typeof(&nvmlDeviceGetComputeRunningProcesses_v3))nvml(
			"nvmlDeviceGetComputeRunningProcesses_v3");
	nvmlProcessInfo_v2_t found[128];
	unsigned int count = 128;

	EQUAL(list(nvml_card(), &count, found), 0);
	for (unsigned int i = 0; i < count; i++) {
		if (found[i].pid == (unsigned int)pid)
			return (long long)found[i].usedGpuMemory;
	}
	return -1;
}

CUdeviceptr allocated(size_t bytes)
{
	CUdeviceptr pointer;

	OK(cuMemAlloc_v2(&pointer, bytes));
	return pointer;
}

static CUdeviceptr filling[256];
static size_t fillings;

void fill(size_t leave)
{
	const size_t unit = granule();
	size_t piece = free_bytes();

	while (piece >= unit && free_bytes() > leave) {
		const size_t room = (free_bytes() - leave) / unit * unit;

		piece = piece / unit * unit < room ? piece / unit * unit : room;
		CHECK(fillings < sizeof(filling) / sizeof(*filling));
		if (!piece || cuMemAlloc_v2(&filling[fillings], piece))
			piece /= 2;
		else
			fillings++;
	}
}

void empty(void)
{
	while (fillings)
		OK(cuMemFree_v2(filling[--fillings]));
}

CUstream stream_new(void)
{
	CUstream stream;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

CUevent event_new(unsigned int flags)
{
	CUevent event;

	OK(cuEventCreate(&event, flags));
	return event;
}

static CUfunction waiting(void)
{
	/* The simulator reads the duration; a card looks at its clock until it has passed. */
	static const char text[] =
		".version 6.3\n.target sm_75\n.address_size 64\n"
		".visible .entry wait(.param .u64 duration_ns) {\n"
		".reg .u64 %duration, %start, %now;\n.reg .pred %still;\n"
		"ld.param.u64 %duration, [duration_ns];\n"
		"mov.u64 %start, %globaltimer;\nagain:\n"
		"mov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %start;\n"
		"setp.lt.u64 %still, %now, %duration;\n@%still bra again;\nret;\n}\n";
	static CUkernel kernel;
	CUlibrary library;

	if (!kernel) {
		OK(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
		OK(cuLibraryGetKernel(&kernel, library, "wait"));
	}
	return (CUfunction)(void *)kernel;
}

CUresult launch_ns(CUstream stream, uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return cuLaunchKernel(waiting(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

float elapsed_ms(CUevent start, CUevent end)
{
	float elapsed;

	OK(cuEventElapsedTime(&elapsed, start, end));
	return elapsed;
}

CUmemGenericAllocationHandle physical(
	CUdevice device, size_t bytes, CUmemAllocationHandleType handle_type)
{
	const CUmemAllocationProp properties = of_card(device, handle_type);
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, bytes, &properties, 0));
	return handle;
}

CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t bytes)
{
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr pointer;

	OK(cuMemAddressReserve(&pointer, bytes, 0, 0, 0));
	OK(cuMemMap(pointer, bytes, 0, handle, 0));
	OK(cuMemSetAccess(pointer, bytes, &access, 1));
	return pointer;
}

void unmap(CUdeviceptr pointer, size_t bytes)
{
	OK(cuMemUnmap(pointer, bytes));
	OK(cuMemAddressFree(pointer, bytes));
}

struct peer peer_start(void (*body)(int socket))
{
	struct peer peer;
	int ends[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	peer = (struct peer){fork(), ends[0]};
	CHECK(peer.pid >= 0);
	if (peer.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		body(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	return peer;
}

void dead_are_seen(void)
{
	usleep(2000);
}

void peer_kill(struct peer peer)
{
	kill(peer.pid, SIGKILL);
	EQUAL(waitpid(peer.pid, NULL, 0), peer.pid);
	close(peer.socket);
	dead_are_seen();
}

void say_bytes(int socket, const void *bytes, size_t size)
{
	EQUAL(send(socket, bytes, size, MSG_NOSIGNAL), size);
}

void hear_bytes(int socket, void *bytes, size_t size)
{
	if (recv(socket, bytes, size, MSG_WAITALL) != (ssize_t)size)
		fails(__FILE__, __LINE__, "the other process has ended");
}

void say(int socket, uint64_t word)
{
	say_bytes(socket, &word, sizeof(word));
}

uint64_t hear(int socket)
{
	uint64_t word;

	hear_bytes(socket, &word, sizeof(word));
	return word;
}

union fd_room {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr alignment;
};

void say_fd(int socket, int fd)
{
	union fd_room room = {{0}};
	struct iovec byte = {"", 1};
	struct msghdr header = {.msg_iov = &byte,
		.msg_iovlen = 1,
		.msg_control = &room,
		.msg_controllen = sizeof(room)};

	*CMSG_FIRSTHDR(&header) = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN(sizeof(fd))};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), &fd, sizeof(fd));
	EQUAL(sendmsg(socket, &header, MSG_NOSIGNAL), 1);
}

int hear_fd(int socket)
{
	union fd_room room;
	char nothing;
	struct iovec byte = {&nothing, 1};
	struct msghdr header = {.msg_iov = &byte,
		.msg_iovlen = 1,
		.msg_control = &room,
		.msg_controllen = sizeof(room)};
	int fd = -1;

	EQUAL(recvmsg(socket, &header, 0), 1);
	CHECK(CMSG_FIRSTHDR(&header));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));
	return fd;
}
