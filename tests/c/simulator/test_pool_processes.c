/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool's memory in two processes: the importer sees the exporter's bytes and is not charged.
 */
#include "made.h"

#include "expect.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct message {
	char path[256]; /* of the device file */
	CUmemPoolPtrExportData pointer;
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr alignment;
	} control;
};

static struct msghdr header_of(struct message *message, struct iovec *bytes)
{
	*bytes = (struct iovec){message, offsetof(struct message, control)};
	return (struct msghdr){.msg_iov = bytes,
		.msg_iovlen = 1,
		.msg_control = &message->control,
		.msg_controllen = sizeof(message->control)};
}

static void send_pool(int peer, CUmemoryPool pool, CUdeviceptr pointer)
{
	struct message message = {.path = ""};
	struct iovec bytes;
	struct msghdr header = header_of(&message, &bytes);
	struct cmsghdr *first = CMSG_FIRSTHDR(&header);
	const char *path = getenv(SIM_DEVICE_ENV);
	int fd;

	EXPECT(path && first);
	if (!path || !first)
		return;
	snprintf(message.path, sizeof(message.path), "%s", path);
	EXPECT_EQUAL(cuMemPoolExportPointer(&message.pointer, pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolExportToShareableHandle(
			     &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
	*first = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN(sizeof(fd))};
	memcpy(CMSG_DATA(first), &fd, sizeof(fd));
	EXPECT(sendmsg(peer, &header, 0) > 0);
	close(fd);
}

/* Answers with the card's memory that is used on its account beyond a context, and a word it read;
 * then holds what it has until it is killed. */
static void import(int peer)
{
	struct message message;
	struct iovec bytes;
	struct msghdr header = header_of(&message, &bytes);
	uint64_t answer[2] = {0};
	CUmemoryPool pool;
	CUdeviceptr pointer;
	CUcontext context;
	size_t before;
	int fd;

	EXPECT(recvmsg(peer, &header, 0) > 0);
	struct cmsghdr *first = CMSG_FIRSTHDR(&header);
	EXPECT(first);
	if (!first)
		return;
	memcpy(&fd, CMSG_DATA(first), sizeof(fd));
	setenv(SIM_DEVICE_ENV, message.path, 1);
	EXPECT_EQUAL(cuInit(0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	EXPECT_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	before = free_bytes();
	EXPECT_EQUAL(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
			     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemPoolImportPointer(&pointer, pool, &message.pointer), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemcpyDtoH_v2(&answer[1], pointer, 4), CUDA_SUCCESS);
	answer[0] = before - free_bytes();
	EXPECT_EQUAL(write(peer, answer, sizeof(answer)), sizeof(answer));
	pause();
}

int main(void)
{
	const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	uint64_t answer[2];
	CUmemoryPool pool;
	CUdeviceptr pointer;
	size_t before;
	int peers[2];
	pid_t child;

	EXPECT_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, peers), 0);
	child = fork();
	if (child == 0) {
		close(peers[0]);
		import(peers[1]);
		_exit(1);
	}
	close(peers[1]);
	made_context();
	EXPECT_EQUAL(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemAllocFromPoolAsync(&pointer, 3 * MIB, pool, NULL), CUDA_SUCCESS);
	EXPECT_EQUAL(cuMemsetD32_v2(pointer, 0x5eed, 1024), CUDA_SUCCESS);
	before = free_bytes();
	send_pool(peers[0], pool, pointer);
	EXPECT_EQUAL(read(peers[0], answer, sizeof(answer)), sizeof(answer));
	EXPECT_EQUAL(answer[0], 0);
	EXPECT_EQUAL(answer[1], 0x5eed);
	kill(child, SIGKILL);
	EXPECT_EQUAL(waitpid(child, NULL, 0), child);
	/* Its context went with it; the memory is its maker's and still there. */
	card_lock(&device->cards[0]);
	card_reap(&device->cards[0]);
	card_unlock(&device->cards[0]);
	EXPECT_EQUAL(free_bytes(), before);
	EXPECT_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
	return 0;
}
