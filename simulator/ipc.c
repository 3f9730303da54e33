/* SPDX-License-Identifier: Apache-2.0
 *
 * IPC handles of memory. Exported memory becomes a memfd, which the process that opens the handle
 * finds among the exporter's descriptors: so, as with the real driver, it must see the exporter's
 * PID and be allowed to inspect it (ptrace(2), PTRACE_MODE_READ). A whole block is exported with a
 * small allocation of it, and mapped once. It is counted as a piece (piece.h).
 */
#include "ipc.h"

#include "piece.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FD_NAME "gpushare-sim-ipc"
#define HANDLE_MAGIC UINT64_C(0x49504348414e4431)
#define PAGE_BYTES 4096

/* The contents of CUipcMemHandle. */
struct ipc_handle {
	uint64_t magic;
	uint64_t maker; /* process tag, and the number of its piece */
	uint64_t number;
	uint32_t card;
	int32_t fd; /* the maker's */
	uint64_t region_bytes;
	uint64_t offset; /* of the allocation in its region */
	uint64_t bytes;
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "it fits");

/* An allocation in a region that was opened. */
struct opened {
	uint64_t offset;
	uint64_t bytes;
	unsigned int times;
	struct opened *next;
};

/* Of a region: its role for other processes. */
struct ipc {
	struct sim_card *card;
	uint64_t maker;
	uint64_t number;
	int fd; /* of an exported one; -1 */
	struct region *region;
	struct opened *opened;
	struct ipc *next; /* of the opened ones */
};

static struct ipc *imported;

static void *contents(const struct region *region)
{
	return (void *)(region->base + space_shadow());
}

static bool map_file(const struct region *region, int fd)
{
	return region->units > 0 &&
	       mmap(contents(region), region->units * UNIT_BYTES, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != MAP_FAILED;
}

void ipc_forget_region(struct region *region)
{
	struct ipc *ipc = region->ipc;

	mmap(contents(region), region->units * UNIT_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	region->written = false;
	region->ipc = NULL;
	card_lock(ipc->card);
	piece_drop(ipc->card, ipc->maker, ipc->number);
	card_unlock(ipc->card);
	if (ipc->fd >= 0)
		close(ipc->fd);
	free(ipc);
}

bool ipc_find(struct region *region, CUdeviceptr pointer, struct extent *extent)
{
	for (struct opened *opened = region->ipc->opened; opened; opened = opened->next) {
		if (pointer - region->base < opened->offset ||
			pointer - region->base - opened->offset >= opened->bytes)
			continue;
		*extent = (struct extent){region, region->base + opened->offset, opened->bytes};
		return true;
	}
	return false;
}

/* Bytes written so far go into the file; empty pages do not. */
static bool copy_contents(const struct region *region, int fd)
{
	static const char empty[PAGE_BYTES];
	const char *from = contents(region);

	for (uint64_t at = 0; region->written && at < region->units * UNIT_BYTES;
		at += PAGE_BYTES) {
		if (memcmp(from + at, empty, PAGE_BYTES) != 0 &&
			pwrite(fd, from + at, PAGE_BYTES, (off_t)at) != PAGE_BYTES)
			return false;
	}
	return true;
}

static int make_file(const struct region *region, uint64_t number)
{
	char name[96];
	int fd;

	snprintf(name, sizeof(name), FD_NAME "-%" PRIu64 "-%" PRIu64, process_tag(), number);
	fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC);
	if (fd >= 0 && (ftruncate(fd, (off_t)(region->units * UNIT_BYTES)) != 0 ||
			       !copy_contents(region, fd) || !map_file(region, fd))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Convert the region to one that others can open. */
static CUresult share(struct region *region)
{
	struct ipc *ipc = calloc(1, sizeof(*ipc));
	bool shared;

	REQUIRE(ipc, CUDA_ERROR_OUT_OF_MEMORY);
	*ipc = (struct ipc){.card = region->context->card,
		.maker = process_tag(),
		.number = piece_number(),
		.region = region};
	ipc->fd = make_file(region, ipc->number);
	if (ipc->fd < 0) {
		free(ipc);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->ipc = ipc;
	card_lock(ipc->card);
	shared = piece_share(ipc->card, ipc->number, region->counted_bytes);
	card_unlock(ipc->card);
	/* Without a slot in the table it stays private to this process, in a file without other
	 * users. */
	REQUIRE(shared, CUDA_ERROR_OUT_OF_MEMORY);
	region->counted_bytes = 0;
	return CUDA_SUCCESS;
}

static CUresult export(const struct extent *extent, struct ipc_handle *handle)
{
	struct region *region = extent->region;
	CUresult result = CUDA_SUCCESS;

	REQUIRE(region->kind == REGION_WHOLE || region->kind == REGION_SHARED,
		CUDA_ERROR_INVALID_VALUE);
	if (!region->ipc || region->counted_bytes > 0)
		result = region->ipc ? CUDA_ERROR_OUT_OF_MEMORY : share(region);
	if (result != CUDA_SUCCESS)
		return result;
	*handle = (struct ipc_handle){.magic = HANDLE_MAGIC,
		.maker = region->ipc->maker,
		.number = region->ipc->number,
		.card = card_place(region->ipc->card),
		.fd = region->ipc->fd,
		.region_bytes = region->units * UNIT_BYTES,
		.offset = extent->base - region->base,
		.bytes = extent->bytes};
	return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *result, CUdeviceptr pointer)
{
	struct ipc_handle handle;
	struct extent extent;
	CUresult status = CUDA_ERROR_INVALID_VALUE;

	REQUIRE_DRIVER();
	REQUIRE(result, CUDA_ERROR_INVALID_VALUE);
	space_take();
	if (memory_find_held(pointer, &extent))
		status = export(&extent, &handle);
	space_drop();
	if (status != CUDA_SUCCESS)
		return status;
	memset(result, 0, sizeof(*result));
	memcpy(result, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

/* The exporter's file, if it still has it under that number. */
static int open_file(const struct ipc_handle *handle)
{
	char path[64], name[96] = "", wanted[96];
	int pid = 0, fd;

	if (!process_alive(handle->maker, &pid) || pid == 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, handle->fd);
	snprintf(wanted, sizeof(wanted), "/memfd:" FD_NAME "-%" PRIu64 "-%" PRIu64 " ",
		handle->maker, handle->number);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name) - 1) > 0 &&
		strncmp(name, wanted, strlen(wanted)) == 0)
		return fd;
	close(fd);
	return -1;
}

static struct ipc *find_imported(const struct ipc_handle *handle)
{
	for (struct ipc *ipc = imported; ipc; ipc = ipc->next) {
		if (ipc->maker == handle->maker && ipc->number == handle->number)
			return ipc;
	}
	return NULL;
}

static CUresult hold(struct ipc *ipc, const struct ipc_handle *handle)
{
	bool held;

	card_lock(ipc->card);
	held = piece_hold(ipc->card, ipc->maker, ipc->number, handle->region_bytes);
	card_unlock(ipc->card);
	return held ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Map the exporter's region, which this process has not opened yet. */
static CUresult import(
	CUcontext context, const struct ipc_handle *handle, int fd, struct ipc **result)
{
	struct ipc *ipc = calloc(1, sizeof(*ipc));
	CUresult status = CUDA_ERROR_OUT_OF_MEMORY;

	REQUIRE(ipc, CUDA_ERROR_OUT_OF_MEMORY);
	*ipc = (struct ipc){.card = card_at(handle->card),
		.maker = handle->maker,
		.number = handle->number,
		.fd = -1};
	if (space_ready())
		ipc->region =
			region_new(REGION_OPENED, (uint32_t)(handle->region_bytes / UNIT_BYTES), 1);
	if (ipc->region)
		status = map_file(ipc->region, fd) ? hold(ipc, handle) : CUDA_ERROR_MAP_FAILED;
	if (status != CUDA_SUCCESS) {
		if (ipc->region)
			region_free(ipc->region);
		free(ipc);
		return status;
	}
	ipc->region->context = context;
	ipc->region->ipc = ipc;
	ipc->next = imported;
	imported = ipc;
	*result = ipc;
	return CUDA_SUCCESS;
}

/* Count one more opening of the allocation; a second one has the same address. */
static CUresult open_in(struct ipc *ipc, const struct ipc_handle *handle, CUdeviceptr *pointer)
{
	struct opened *opened = ipc->opened;

	while (opened && opened->offset != handle->offset)
		opened = opened->next;
	if (!opened) {
		opened = malloc(sizeof(*opened));
		REQUIRE(opened, CUDA_ERROR_OUT_OF_MEMORY);
		*opened = (struct opened){handle->offset, handle->bytes, 0, ipc->opened};
		ipc->opened = opened;
	}
	opened->times++;
	*pointer = ipc->region->base + opened->offset;
	return CUDA_SUCCESS;
}

static void end(struct ipc *ipc)
{
	struct region *region = ipc->region;

	for (struct ipc **link = &imported; *link; link = &(*link)->next) {
		if (*link == ipc) {
			*link = ipc->next;
			break;
		}
	}
	while (ipc->opened) {
		struct opened *opened = ipc->opened;

		ipc->opened = opened->next;
		free(opened);
	}
	ipc_forget_region(region);
	region_free(region);
}

static CUresult open_handle(
	CUcontext context, const struct ipc_handle *handle, CUdeviceptr *pointer)
{
	struct ipc *ipc = find_imported(handle);
	CUresult status = CUDA_SUCCESS;

	if (!ipc) {
		int fd = open_file(handle);

		REQUIRE(fd >= 0, CUDA_ERROR_INVALID_HANDLE);
		status = import(context, handle, fd, &ipc);
		close(fd);
	}
	if (status == CUDA_SUCCESS)
		status = open_in(ipc, handle, pointer);
	if (status != CUDA_SUCCESS && ipc && !ipc->opened)
		end(ipc);
	return status;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle opaque, unsigned int flags)
{
	struct ipc_handle handle;
	CUresult status;

	REQUIRE_CONTEXT(context);
	REQUIRE(pointer && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
	memcpy(&handle, &opaque, sizeof(handle));
	REQUIRE(handle.magic == HANDLE_MAGIC && handle.card < device_entries() &&
			handle.region_bytes >= UNIT_BYTES &&
			handle.region_bytes / UNIT_BYTES < UINT32_MAX,
		CUDA_ERROR_INVALID_HANDLE);
	/* The real driver's error for a process that opens its own handle. */
	REQUIRE(handle.maker != process_tag(), CUDA_ERROR_INVALID_CONTEXT);
	REQUIRE_NO_FAULT(card_at(handle.card));
	space_take();
	status = open_handle(context, &handle, pointer);
	space_drop();
	return status;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

static CUresult close_opened(CUdeviceptr pointer)
{
	struct region *region = region_at(pointer);
	struct opened **link;

	REQUIRE(region && region->kind == REGION_OPENED, CUDA_ERROR_INVALID_VALUE);
	link = &region->ipc->opened;
	while (*link && region->base + (*link)->offset != pointer)
		link = &(*link)->next;
	REQUIRE(*link, CUDA_ERROR_INVALID_VALUE);
	if (--(*link)->times == 0) {
		struct opened *gone = *link;

		*link = gone->next;
		free(gone);
	}
	if (!region->ipc->opened)
		end(region->ipc);
	return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	CUresult status;

	REQUIRE_DRIVER();
	space_take();
	status = close_opened(pointer);
	space_drop();
	return status;
}

void ipc_forget_context(CUcontext context)
{
	space_take();
	for (struct ipc *ipc = imported, *next; ipc; ipc = next) {
		next = ipc->next;
		if (ipc->region->context == context)
			end(ipc);
	}
	space_drop();
}
