/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* accept4, struct ucred */
#include "control.h"

#include "cleanup.h"
#include "loop.h"
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 8

static struct source clients[CLIENTS]; /* fd 0: unused */
static bool had_client;
/* To a new scheduler, the tenant that is named first would seem alone on its card, and would be
 * unlimited. */
static bool is_complete = true;

/* One scheduler per path: two would write the same gates. Held as long as this process runs. */
static bool lock(const char *path)
{
	char name[sizeof(((struct sockaddr_un *)0)->sun_path) + sizeof(".lock")];
	CLEANUP_FD int fd = -1;

	snprintf(name, sizeof(name), "%s.lock", path);
	fd = open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return false;
	steal_fd(&fd);
	return true;
}

static bool is_trusted(int fd)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
	       (peer.uid == 0 || peer.uid == geteuid());
}

static struct source *vacant(void)
{
	for (struct source *client = clients; client < clients + CLIENTS; client++)
		if (!client->fd)
			return client;
	return NULL;
}

static bool is_text(const char *text, size_t room)
{
	const size_t length = strnlen(text, room);
	return length > 0 && length < room;
}

static bool is_share(const struct schedule_share *share)
{
	return is_text(share->uuid, sizeof(share->uuid)) && share->permille >= 1 &&
	       share->permille <= 1000 && share->capped <= 1 && share->online <= 1 &&
	       share->measured <= 1 && share->correction_permille >= -1000 &&
	       share->correction_permille <= 1000;
}

static int tenant_check(const struct schedule_message *message)
{
	if (message->card_count < 1)
		return EINVAL;
	for (uint32_t number = 0; number < message->card_count; number++) {
		if (!is_share(&message->shares[number]))
			return EINVAL;
		for (uint32_t other = 0; other < number; other++)
			if (strcmp(message->shares[number].uuid, message->shares[other].uuid) == 0)
				return EINVAL;
	}
	return 0;
}

int message_check(const struct schedule_message *message, size_t length)
{
	const size_t head = offsetof(struct schedule_message, shares);

	if (length < head || message->card_count > GPUSHARE_MAX_CARDS ||
		length != head + message->card_count * sizeof(message->shares[0]))
		return EINVAL;
	if (message->version != SCHEDULE_VERSION)
		return EPROTO;
	switch (message->type) {
	case SCHEDULE_HELLO:
	case SCHEDULE_COMPLETE:
		return message->card_count ? EINVAL : 0;
	case SCHEDULE_REMOVE:
		if (message->card_count || !is_text(message->key, sizeof(message->key)))
			return EINVAL;
		return 0;
	case SCHEDULE_TENANT:
		if (!is_text(message->key, sizeof(message->key)))
			return EINVAL;
		return tenant_check(message);
	default:
		return EINVAL;
	}
}

static int act(const struct schedule_message *message, int directory, uint64_t now_ns)
{
	switch (message->type) {
	case SCHEDULE_HELLO:
		if (!tenants_count())
			is_complete = false;
		tenants_unname();
		return 0;
	case SCHEDULE_TENANT:
		return tenant_put(message, directory, now_ns);
	case SCHEDULE_REMOVE:
		tenant_remove(message->key, now_ns);
		return 0;
	default:
		tenants_forget_unnamed(now_ns);
		is_complete = true;
		return 0;
	}
}

/* One packet and at most one descriptor: the kernel drops further ones. Returns its length, 0 at
 * the end of the connection, -1 with errno. */
static ssize_t receive(int fd, struct schedule_message *message, int *directory)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec room = {.iov_base = message, .iov_len = sizeof(*message)};
	struct msghdr packet = {
		.msg_iov = &room,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		/* Not CMSG_SPACE: a second descriptor would fit into its padding. */
		.msg_controllen = CMSG_LEN(sizeof(int)),
	};
	const ssize_t length = recvmsg(fd, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	const struct cmsghdr *rights = length < 0 ? NULL : CMSG_FIRSTHDR(&packet);

	if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
		memcpy(directory, CMSG_DATA(rights), sizeof(*directory));
	/* Longer than any message: returned as an invalid length. */
	return length > 0 && packet.msg_flags & MSG_TRUNC ? 1 : length;
}

static void client_close(struct source *client)
{
	loop_forget(client);
	close(client->fd);
	client->fd = 0;
}

/* Receive one message and act on it. Returns the length like `receive`; `error` is the reply. */
static ssize_t client_hear(const struct source *client, uint64_t now_ns, int *error)
{
	struct schedule_message message = {0};
	CLEANUP_FD int directory = -1;
	const ssize_t length = receive(client->fd, &message, &directory);

	if (length <= 0)
		return length;
	*error = message_check(&message, (size_t)length);
	if (!*error)
		*error = act(&message, directory, now_ns);
	return length;
}

static void client_ready(struct source *client, uint64_t now_ns)
{
	int error = 0;
	const ssize_t length = client_hear(client, now_ns, &error);

	if (length < 0 && errno == EAGAIN)
		return;
	if (length <= 0) {
		client_close(client);
		return;
	}
	const struct schedule_answer answer = {
		.version = SCHEDULE_VERSION,
		.error = error,
		.pid = getpid(),
		.tenants = tenants_count(),
		.time_scale = cards_time_scale(),
	};
	/* A client that does not read its replies is not gpushared. */
	if (send(client->fd, &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		client_close(client);
}

static void listener_ready(struct source *source, uint64_t now_ns)
{
	CLEANUP_FD int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct source *client = vacant();

	(void)now_ns;
	if (fd < 0 || !client || !is_trusted(fd))
		return;
	*client = (struct source){.fd = fd, .ready = client_ready};
	if (!loop_read(client)) {
		client->fd = 0;
		return;
	}
	steal_fd(&fd);
	had_client = true;
}

bool control_is_complete(void)
{
	return is_complete;
}

bool control_has_clients(void)
{
	for (const struct source *client = clients; client < clients + CLIENTS; client++)
		if (client->fd)
			return true;
	return !had_client;
}

bool control_listen(const char *path)
{
	static struct source listener = {.ready = listener_ready};
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		return false;
	}
	strcpy(address.sun_path, path);
	if (!lock(path) || (unlink(path) < 0 && errno != ENOENT))
		return false;
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	const mode_t before = umask(0177);
	const int bound = bind(fd, (const struct sockaddr *)&address, sizeof(address));
	umask(before);
	if (bound < 0 || listen(fd, CLIENTS) < 0)
		return false;
	listener.fd = steal_fd(&fd);
	return loop_read(&listener);
}

void control_close(const char *path)
{
	unlink(path);
}
