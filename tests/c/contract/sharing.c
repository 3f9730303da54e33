/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that several processes hold is on the card once, and to the end.
 */
#include "contract.h"

#include <unistd.h>

#define SIZE (64 * MIB)

static void write_word(CUdeviceptr pointer, unsigned int word)
{
	OK(cuMemsetD32_v2(pointer, word, 1));
}

static unsigned int word_at(CUdeviceptr pointer)
{
	unsigned int word = 0;

	OK(cuMemcpyDtoH_v2(&word, pointer, sizeof(word)));
	return word;
}

/* What NVML has of two processes must have grown by so much since `before`, where it lists them. */
struct listed {
	pid_t pid;
	long long bytes;
};

static struct listed listed(pid_t pid)
{
	return (struct listed){pid, listed_bytes(pid)};
}

static void has_grown(struct listed before, size_t bytes)
{
	if (before.bytes >= 0)
		EQUAL(listed_bytes(before.pid) - before.bytes, bytes);
}

static CUmemGenericAllocationHandle imported(int fd)
{
	CUmemGenericAllocationHandle handle;

	OK(cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	return handle;
}

/* Makes physical memory, writes to it, and gives it away as a descriptor. */
static void make_physical(int socket)
{
	int fd;

	begin();
	const CUmemGenericAllocationHandle handle =
		physical(0, SIZE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	const CUdeviceptr pointer = mapped(handle, SIZE);

	write_word(pointer, 77);
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	say_fd(socket, fd);
	hear(socket);
	EQUAL(word_at(pointer + MIB), 78);
	say(socket, 0);
	hear(socket);
}

void imported_physical_memory_is_counted_once_and_outlives_its_maker(void)
{
	struct peer maker = peer_start(make_physical);
	const int fd = hear_fd(maker.socket);

	begin();
	const struct listed its = listed(maker.pid), own = listed(getpid());
	const size_t before = free_bytes();
	const CUmemGenericAllocationHandle handle = imported(fd);
	const CUdeviceptr pointer = mapped(handle, SIZE);

	close(fd);
	has_grown(its, 0);
	has_grown(own, 0);
	CHECK(before - free_bytes() < SIZE);
	EQUAL(word_at(pointer), 77);
	write_word(pointer + MIB, 78);
	OK(cuCtxSynchronize());
	say(maker.socket, 0);
	hear(maker.socket);
	peer_kill(maker);
	BECOMES(free_bytes() > before);
	const size_t alone = free_bytes();
	EQUAL(word_at(pointer), 77);
	OK(cuMemRelease(handle));
	EQUAL(free_bytes(), alone);
	unmap(pointer, SIZE);
	EQUAL(free_bytes() - alone, SIZE);
	has_grown(own, 0);
}

void each_import_holds_the_memory_by_a_handle_of_its_own(void)
{
	struct peer maker = peer_start(make_physical);
	const int fd = hear_fd(maker.socket);

	begin();
	const CUmemGenericAllocationHandle first = imported(fd), second = imported(fd);
	const CUdeviceptr pointer = mapped(first, SIZE);
	const struct listed own = listed(getpid());
	const size_t before = free_bytes();

	close(fd);
	CHECK(first != second);
	peer_kill(maker);
	BECOMES(free_bytes() > before);
	has_grown(own, SIZE);
	const size_t alone = free_bytes();
	OK(cuMemRelease(first));
	unmap(pointer, SIZE);
	EQUAL(free_bytes(), alone);
	OK(cuMemRelease(second));
	EQUAL(free_bytes() - alone, SIZE);
	has_grown(own, 0);
}

/* Says what it has to share by IPC: a large allocation, and two small ones. */
static void export_memory(int socket)
{
	CUdeviceptr pointers[3];
	CUipcMemHandle handle;
	CUdeviceptr own;

	begin();
	for (unsigned int i = 0; i < 3; i++) {
		pointers[i] = allocated(i ? 4096 : SIZE);
		write_word(pointers[i], 7 + i);
		OK(cuIpcGetMemHandle(&handle, pointers[i]));
		say_bytes(socket, &handle, sizeof(handle));
	}
	IS(CUDA_ERROR_INVALID_CONTEXT,
		cuIpcOpenMemHandle_v2(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	say(socket, pointers[2] - pointers[1]);
	hear(socket);
	EQUAL(word_at(pointers[0] + MIB), 78);
	say(socket, 0);
	hear(socket);
	for (int i = 0; i < 3; i++)
		OK(cuMemFree_v2(pointers[i]));
	say(socket, 0);
	hear(socket);
}

static void hear_handles(int socket, CUipcMemHandle handles[3])
{
	for (int i = 0; i < 3; i++)
		hear_bytes(socket, &handles[i], sizeof(handles[i]));
}

static CUdeviceptr opened(CUipcMemHandle handle)
{
	CUdeviceptr pointer;

	OK(cuIpcOpenMemHandle_v2(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	return pointer;
}

void memory_opened_by_ipc_is_its_exporters(void)
{
	struct peer exporter = peer_start(export_memory);
	CUipcMemHandle handles[3];
	CUdeviceptr base, pointers[3];
	size_t bytes;

	hear_handles(exporter.socket, handles);
	const uint64_t distance = hear(exporter.socket);
	begin();
	const struct listed its = listed(exporter.pid), own = listed(getpid());
	const size_t before = free_bytes();
	for (unsigned int i = 0; i < 3; i++) {
		pointers[i] = opened(handles[i]);
		EQUAL(word_at(pointers[i]), 7 + i);
	}
	EQUAL(pointers[2] - pointers[1], distance);
	CHECK(before - free_bytes() < SIZE);
	has_grown(its, 0);
	has_grown(own, 0);
	OK(cuMemGetAddressRange_v2(&base, &bytes, pointers[0] + MIB));
	EQUAL(base, pointers[0]);
	EQUAL(bytes, SIZE);
	FAILS(cuMemFree_v2(pointers[0]));
	write_word(pointers[0] + MIB, 78);
	OK(cuCtxSynchronize());
	say(exporter.socket, 0);
	hear(exporter.socket);
	/* Opened twice, it is one address until it is closed twice. */
	EQUAL(opened(handles[0]), pointers[0]);
	OK(cuIpcCloseMemHandle(pointers[0]));
	EQUAL(word_at(pointers[0]), 7);
	for (int i = 0; i < 3; i++)
		OK(cuIpcCloseMemHandle(pointers[i]));
	FAILS(cuIpcCloseMemHandle(pointers[0]));
	FAILS(cuMemGetAddressRange_v2(&base, &bytes, pointers[0]));
	FAILS(cuIpcOpenMemHandle_v2(&base, handles[0], 0));
	const size_t shared = free_bytes();
	say(exporter.socket, 0);
	hear(exporter.socket); /* it has freed all of it */
	CHECK(free_bytes() - shared >= SIZE);
	peer_kill(exporter);
}

void memory_opened_by_ipc_outlives_its_exporter(void)
{
	struct peer exporter = peer_start(export_memory);
	CUipcMemHandle handles[3];
	CUdeviceptr again;

	hear_handles(exporter.socket, handles);
	begin();
	const CUdeviceptr pointer = opened(handles[0]);

	peer_kill(exporter);
	EQUAL(word_at(pointer), 7);
	FAILS(cuIpcOpenMemHandle_v2(&again, handles[1], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	const size_t alone = free_bytes();
	OK(cuIpcCloseMemHandle(pointer));
	CHECK(free_bytes() - alone >= SIZE);
}
