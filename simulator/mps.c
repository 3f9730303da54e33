/* SPDX-License-Identifier: Apache-2.0 */
#include "mps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MESSAGE_BYTES 8192
#define DEFAULT_DIRECTORY "/tmp/nvidia-mps"

static int server = -1;
/* Of the first fault; the calls of all threads return it from then on. */
static _Atomic CUresult fault;
/* The reply: "ok\nDEVICES". */
static char reply[MESSAGE_BYTES];
static const char *devices;

static bool dial(void)
{
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/control",
		directory ? directory : DEFAULT_DIRECTORY);

	if (length < 0 || (size_t)length >= sizeof(address.sun_path))
		return false;
	server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (server >= 0 && connect(server, (struct sockaddr *)&address, sizeof(address)) == 0)
		return true;
	if (server >= 0)
		close(server);
	server = -1;
	return false;
}

CUresult mps_connect(void)
{
	static const char request[] = "client";
	ssize_t bytes;

	if (!dial())
		return CUDA_SUCCESS;
	if (send(server, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0)
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	do
		bytes = recv(server, reply, sizeof(reply) - 1, 0);
	while (bytes < 0 && errno == EINTR);
	REQUIRE(bytes > 0, CUDA_ERROR_MPS_CONNECTION_FAILED);
	reply[bytes] = '\0';
	if (strncmp(reply, "error ", 6) == 0)
		return (CUresult)atoi(reply + 6);
	REQUIRE(strncmp(reply, "ok\n", 3) == 0, CUDA_ERROR_MPS_RPC_FAILURE);
	devices = reply + 3;
	return CUDA_SUCCESS;
}

bool mps_active(void)
{
	return server >= 0;
}

const char *mps_devices(void)
{
	return devices;
}

void mps_list(void)
{
	for (uint32_t i = 0; server >= 0 && i < device_count(); i++) {
		struct sim_card *card = device_card((CUdevice)i);

		card_lock(card);
		card->shares[tag_process(process_tag())].mps_client = 1;
		card_unlock(card);
	}
}

CUresult mps_status(void)
{
	CUresult known = atomic_load_explicit(&fault, memory_order_relaxed);
	char text[32];
	ssize_t bytes;

	if (known != CUDA_SUCCESS || server < 0)
		return known;
	bytes = recv(server, text, sizeof(text) - 1, MSG_DONTWAIT);
	if (bytes < 0)
		return CUDA_SUCCESS;
	text[bytes] = '\0';
	known = bytes == 0 ? CUDA_ERROR_MPS_RPC_FAILURE : (CUresult)atoi(text);
	atomic_store(&fault, known);
	return known;
}

void mps_fault(void)
{
	static const char text[] = "fault";

	atomic_store(&fault, CUDA_ERROR_LAUNCH_FAILED);
	if (server >= 0)
		(void)!send(server, text, sizeof(text) - 1, MSG_NOSIGNAL);
}
